#include "cli/cluster.hpp"

#include "cli/layout.hpp"

#include <filesystem>

#include <unistd.h>

namespace cli {
namespace {

/// Who may connect: only by the socket, only users that the map names.
constexpr std::string_view access_rules =
    "# Written by space up; changes are lost.\n"
    "local all all peer map=space\n";

/// The owner's role makes the schema and the others' roles; the programs have no more than they
/// need.
std::string user_map(wire::Config const& config) {
  std::string text = "# Written by space up; changes are lost.\n# map  system user  role\n";
  for (auto const& [user, role] : {std::pair(config.database_user, "space_owner"),
                                   std::pair(std::string("root"), "space_owner"),
                                   std::pair(config.api_user, "space_api"),
                                   std::pair(config.controller_user, "space_controller")}) {
    text += fmt::format("space {} {}\n", user, role);
  }
  return text;
}

std::string cluster_dir(wire::Config const& config) {
  return config.data_dir + "/postgres";
}

base::Result<void> make_cluster(wire::Config const& config, Identity const& as) {
  auto directory = find_postgres("");
  if (!directory) return base::passing(directory);
  // Made beside its place and renamed when whole, so that a killed initdb leaves nothing that looks
  // like a cluster.
  std::string const temporary = cluster_dir(config) + ".new";
  std::error_code failed;
  std::filesystem::remove_all(temporary, failed);
  auto prepared = ensure_directory({temporary, config.database_user, config.database_user, 0700});
  if (!prepared) return base::passing(prepared);
  Program const initdb{.arguments = {*directory + "/initdb",
                                     "--pgdata",
                                     temporary,
                                     "--username",
                                     "space_owner",
                                     "--encoding",
                                     "UTF8",
                                     "--locale",
                                     "C",
                                     "--auth",
                                     "peer",
                                     "--data-checksums",
                                     "--no-instructions"},
                       .environment = plain_environment(),
                       .as = as};
  auto outcome = run_program(initdb);
  if (!outcome) return base::passing(outcome, "make the database cluster");
  if (outcome->exit_code != 0) {
    return base::fail(base::Code::internal,
                      fmt::format("make the database cluster: initdb ended with {}: {}",
                                  outcome->exit_code,
                                  outcome->err));
  }
  std::filesystem::rename(temporary, cluster_dir(config), failed);
  if (failed) return base::fail_errno(failed.value(), "put the database cluster in its place");
  return {};
}

}  // namespace

base::Result<std::string> find_postgres(std::string const& version) {
  std::string newest;
  int newest_number = 0;
  std::error_code ignored;
  for (auto const& entry : std::filesystem::directory_iterator("/usr/lib/postgresql", ignored)) {
    auto const name = entry.path().filename().string();
    auto const number =
        std::atoi(name.c_str());  // NOLINT(cert-err34-c): 0 for anything that is no version
    if (access((entry.path() / "bin/postgres").c_str(), X_OK) != 0 ||
        (!version.empty() && name != version))
      continue;
    if (number > newest_number) {
      newest_number = number;
      newest = (entry.path() / "bin").string();
    }
  }
  if (!newest.empty()) return newest;
  return base::fail(
      base::Code::not_found,
      version.empty() ? "PostgreSQL is not installed; run: apt-get install postgresql"
                      : fmt::format("the data were made by PostgreSQL {0}, which is not installed; "
                                    "run: apt-get install postgresql-{0}",
                                    version));
}

base::Result<bool> ensure_cluster(wire::Config const& config) {
  auto as = identity_of(Service::database, config);
  if (!as) return base::passing(as);
  auto const& owner = **as;
  bool const fresh = access((cluster_dir(config) + "/PG_VERSION").c_str(), F_OK) != 0;
  if (fresh) {
    auto made = make_cluster(config, owner);
    if (!made) return base::passing(made);
  }
  for (auto const& [name, text] : {std::pair(std::string("pg_hba.conf"), std::string(access_rules)),
                                   std::pair(std::string("pg_ident.conf"), user_map(config))}) {
    auto wrote = write_file(cluster_dir(config) + "/" + name, text, 0600, owner.user, owner.group);
    if (!wrote) return base::passing(wrote);
  }
  return fresh;
}

base::Result<std::vector<std::string>> database_command(wire::Config const& config) {
  auto version = read_file(cluster_dir(config) + "/PG_VERSION");
  if (!version) return base::passing(version);
  while (version->ends_with('\n'))
    version->pop_back();
  auto directory = find_postgres(*version);
  if (!directory) return base::passing(directory);
  std::vector<std::string> words = {*directory + "/postgres", "-D", cluster_dir(config)};
  for (std::string const& setting :
       {std::string("listen_addresses="),
        "unix_socket_directories=" + config.database_dir(),
        std::string("unix_socket_permissions=0770"),
        std::string("max_connections=100"),
        std::string("shared_buffers=32MB"),
        // Small and steady: an installation writes little, and its disk is for sandboxes.
        std::string("max_wal_size=256MB"),
        std::string("min_wal_size=32MB"),
        std::string("wal_compression=on"),
        std::string("log_min_messages=warning"),
        std::string("log_line_prefix=%m [%p] %a "),
        std::string("jit=off"),
        std::string("autovacuum_naptime=20s"),
        std::string("cluster_name=") + config.instance}) {
    words.emplace_back("-c");
    words.push_back(setting);
  }
  return words;
}

}  // namespace cli
