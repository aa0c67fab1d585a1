#include "store/migrate.hpp"

#include <array>
#include <memory>

#include <fmt/format.h>
#include <openssl/sha.h>
#include <postgresql/libpq-fe.h>

namespace store {
namespace {

// Any number, the same in every version: held while migrating, so that two starts do not race.
constexpr char const* lock = "select pg_advisory_lock(7315210842)";
constexpr char const* make_table =
    "create table if not exists schema_migrations ("
    "number int primary key, name text not null, checksum text not null, applied_at timestamptz "
    "not null default now())";
constexpr char const* list_applied =
    "select number, name, checksum from schema_migrations order by number";
constexpr char const* record =
    "insert into schema_migrations (number, name, checksum) values ($1, $2, $3)";

// What the programs' roles may do. Roles are of the cluster, so they are made here and not in a
// migration, which is of one database; without the right to make them (an existing server with one
// user for all) there is nothing to grant either.
constexpr char const* make_roles = R"(
do $$
declare role_name text;
begin
  if not (select rolcreaterole or rolsuper from pg_roles where rolname = current_user) then return; end if;
  foreach role_name in array array['space_api', 'space_controller'] loop
    if not exists (select from pg_roles where rolname = role_name) then
      begin
        execute format('create role %I login', role_name);
      exception when duplicate_object or unique_violation then null;  -- another database's migration was first
      end;
    end if;
    execute format('grant usage on schema public to %I', role_name);
    execute format('grant select, insert, update, delete on all tables in schema public to %I', role_name);
    execute format('grant usage, select on all sequences in schema public to %I', role_name);
    execute format('revoke insert, update, delete on schema_migrations from %I', role_name);
  end loop;
  -- A controller carries out what was decided; it neither makes keys nor reads them.
  revoke all on api_keys, key_uses, idempotency_keys, credentials, credential_versions, sandbox_credentials
    from space_controller;
  grant select, delete on key_uses, idempotency_keys to space_controller;
  -- They go with their sandbox, whoever ends it.
  grant select (sandbox, created_at), delete on sandbox_credentials to space_controller;
end $$)";

struct Finish {
  void operator()(PGconn* connection) const noexcept { PQfinish(connection); }
};

struct Clear {
  void operator()(PGresult* result) const noexcept { PQclear(result); }
};

using ConnectionPtr = std::unique_ptr<PGconn, Finish>;
using ResultPtr = std::unique_ptr<PGresult, Clear>;

std::string checksum_of(std::string_view text) {
  std::array<unsigned char, SHA256_DIGEST_LENGTH> digest{};
  // SAFETY: characters are read as bytes.
  SHA256(reinterpret_cast<unsigned char const*>(text.data()), text.size(), digest.data());
  std::string hex;
  for (auto const byte : digest)
    hex += fmt::format("{:02x}", byte);
  return hex;
}

base::Result<ResultPtr> check(ResultPtr result, PGconn* connection, std::string_view step) {
  auto const status = PQresultStatus(result.get());
  if (status == PGRES_TUPLES_OK || status == PGRES_COMMAND_OK) return result;
  return base::fail(base::Code::internal, fmt::format("{}: {}", step, PQerrorMessage(connection)));
}

base::Result<ResultPtr> execute(PGconn* connection, std::string const& sql, std::string_view step) {
  return check(ResultPtr(PQexec(connection, sql.c_str())), connection, step);
}

base::Result<ConnectionPtr> connect(std::string const& conninfo) {
  ConnectionPtr connection(PQconnectdb(conninfo.c_str()));
  if (PQstatus(connection.get()) != CONNECTION_OK) {
    return base::fail(base::Code::unavailable,
                      fmt::format("connect to the database: {}", PQerrorMessage(connection.get())));
  }
  return connection;
}

/// Connects; when only the database itself is missing, makes it through "postgres" first.
base::Result<ConnectionPtr> connect_or_create(std::string const& conninfo) {
  auto connection = connect(conninfo);
  if (connection || connection.error().message().find("does not exist") == std::string::npos)
    return connection;
  char* why = nullptr;
  std::unique_ptr<PQconninfoOption, decltype(&PQconninfoFree)> const options(
      PQconninfoParse(conninfo.c_str(), &why), &PQconninfoFree);
  std::unique_ptr<char, decltype(&PQfreemem)> const message(why, &PQfreemem);
  if (!options)
    return base::fail(base::Code::invalid_argument, "the database address cannot be read");
  std::string name;
  std::vector<char const*> keys;
  std::vector<char const*> values;
  for (auto const* option = options.get(); option->keyword; ++option) {
    if (!option->val) continue;
    bool const is_name = std::string_view(option->keyword) == "dbname";
    if (is_name) name = option->val;
    keys.push_back(option->keyword);
    values.push_back(is_name ? "postgres" : option->val);
  }
  if (name.empty()) return connection;
  keys.push_back(nullptr);
  values.push_back(nullptr);
  ConnectionPtr const admin(PQconnectdbParams(keys.data(), values.data(), 0));
  if (PQstatus(admin.get()) != CONNECTION_OK) return connection;  // the first error says more
  std::unique_ptr<char, decltype(&PQfreemem)> const quoted(
      PQescapeIdentifier(admin.get(), name.c_str(), name.size()), &PQfreemem);
  if (!quoted) return connection;
  auto created =
      execute(admin.get(), fmt::format("create database {}", quoted.get()), "make the database");
  if (!created) return base::passing(created);
  return connect(conninfo);
}

base::Result<void> apply(PGconn* connection, Migration const& migration) {
  // "sql; record" as one transaction. PQexec of several statements would do, but not with $n.
  auto begun = execute(connection, "begin", migration.name);
  if (!begun) return base::passing(begun);
  auto done = execute(connection, std::string(migration.sql), migration.name);
  if (done) {
    auto const number = std::to_string(migration.number);
    auto const name = std::string(migration.name);
    auto const checksum = checksum_of(migration.sql);
    std::array<char const*, 3> const values{number.c_str(), name.c_str(), checksum.c_str()};
    done = check(
        ResultPtr(PQexecParams(connection, record, 3, nullptr, values.data(), nullptr, nullptr, 0)),
        connection,
        "record");
  }
  auto ended = execute(connection, done ? "commit" : "rollback", migration.name);
  if (!done) return base::passing(done);
  if (!ended) return base::passing(ended);
  return {};
}

/// What is applied must be a prefix of what we have, byte for byte.
base::Result<std::size_t> count_applied(PGconn* connection, std::span<Migration const> migrations) {
  auto applied = execute(connection, list_applied, "read the applied migrations");
  if (!applied) return base::passing(applied);
  auto const count = static_cast<std::size_t>(PQntuples(applied->get()));
  if (count > migrations.size()) {
    return base::fail(
        base::Code::conflict,
        fmt::format(
            "the database is at migration {}, newer than this program ({}): use a newer release",
            count,
            migrations.size()));
  }
  for (std::size_t i = 0; i < count; ++i) {
    auto const row = static_cast<int>(i);
    if (checksum_of(migrations[i].sql) != PQgetvalue(applied->get(), row, 2)) {
      return base::fail(
          base::Code::conflict,
          fmt::format("migration {} was applied with another content than this program's {}",
                      PQgetvalue(applied->get(), row, 1),
                      migrations[i].name));
    }
  }
  return count;
}

}  // namespace

base::Result<Migrated> migrate(std::string const& conninfo) {
  return migrate(conninfo, all_migrations());
}

base::Result<Migrated> migrate(std::string const& conninfo, std::span<Migration const> migrations) {
  auto connection = connect_or_create(conninfo);
  if (!connection) return base::passing(connection);
  auto* const raw = connection->get();
  // Quiet: "relation already exists, skipping" is no news.
  for (auto const* step : {"set client_min_messages = warning", lock, make_table}) {
    auto done = execute(raw, step, "prepare the migration");
    if (!done) return base::passing(done);
  }
  auto count = count_applied(raw, migrations);
  if (!count) return base::passing(count);
  Migrated migrated;
  for (auto const& migration : migrations.subspan(*count)) {
    auto applied = apply(raw, migration);
    if (!applied) return base::passing(applied, "migrate the database");
    migrated.applied.emplace_back(migration.name);
  }
  migrated.version = static_cast<int>(migrations.size());
  if (migrations.data() == all_migrations().data()) {
    auto granted = execute(raw, make_roles, "make the roles");
    if (!granted) return base::passing(granted);
  }
  return migrated;  // closing the session gives the lock back
}

}  // namespace store
