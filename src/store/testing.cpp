#include "store/testing.hpp"

#include "base/id.hpp"
#include "os/fd.hpp"
#include "store/migrate.hpp"

#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>

#include <grp.h>
#include <postgresql/libpq-fe.h>
#include <pwd.h>
#include <signal.h>
#include <unistd.h>

namespace store::testing {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void give_up(std::string const& why) {
  fmt::print(stderr, "test PostgreSQL: {}\n", why);
  std::abort();
}

std::string program(std::string const& name) {
  for (int version = 18; version >= 13; --version) {
    auto const path = fmt::format("/usr/lib/postgresql/{}/bin/{}", version, name);
    if (fs::exists(path)) return path;
  }
  return "/usr/bin/" + name;
}

/// PostgreSQL refuses to run as root.
struct User {
  unsigned uid = ::getuid();
  unsigned gid = ::getgid();
};

User database_user() {
  User user;
  if (user.uid == 0) {
    auto const* entry = ::getpwnam("nobody");
    if (!entry) give_up("no user to run it");
    user.uid = entry->pw_uid;
    user.gid = entry->pw_gid;
  }
  return user;
}

enum class As { us, database_user };

int spawn(std::vector<std::string> const& argv, std::string const& log, As who) {
  std::vector<char*> raw;
  for (auto const& one : argv)
    raw.push_back(const_cast<char*>(one.c_str()));  // NOLINT: execv's signature
  raw.push_back(nullptr);
  auto const user = database_user();
  int const parent = ::getpid();
  int const pid = ::fork();
  if (pid < 0) give_up("fork");
  if (pid > 0) return pid;
  if (who == As::database_user && ::getuid() == 0 &&
      (::setgroups(0, nullptr) != 0 || ::setgid(user.gid) != 0 || ::setuid(user.uid) != 0))
    ::_exit(126);
  // Immediate shutdown when the test program is gone, however it went.
  ::prctl(PR_SET_PDEATHSIG, SIGQUIT);
  if (::getppid() != parent) ::_exit(126);
  if (!std::freopen(log.c_str(), "a", stdout) || !std::freopen(log.c_str(), "a", stderr))
    ::_exit(126);
  ::execv(raw[0], raw.data());
  ::_exit(127);
}

void run(std::vector<std::string> const& argv, std::string const& log, As who = As::database_user) {
  int const pid = spawn(argv, log, who);
  int status = 0;
  if (::waitpid(pid, &status, 0) != pid || status != 0) {
    std::ifstream file(log);
    give_up(fmt::format(
        "{} failed: {}", argv[0], std::string(std::istreambuf_iterator<char>(file), {})));
  }
}

/// A new cluster with these migrations, beside the test programs: making one takes a second of CPU,
/// and each test is a process of its own. None where that place cannot be written.
class Prepared {
 public:
  Prepared() {
    std::string text = program("initdb");
    for (auto const& migration : all_migrations())
      text += fmt::format("\n{}\n{}", migration.name, migration.sql);
    auto const beside = fs::read_symlink("/proc/self/exe").parent_path().string();
    path_ = fmt::format("{}/postgres-{:016x}", beside, std::hash<std::string>()(text));
    lock_ = os::Fd(::open((beside + "/postgres.lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    if (lock_ && ::flock(lock_.get(), LOCK_EX) != 0) lock_ = {};
  }

  bool copy_to(std::string const& data, std::string const& log) const {
    if (!lock_ || !fs::exists(path_)) return false;
    run({"/bin/cp", "-a", "--reflink=auto", path_, data}, log, As::us);
    return true;
  }

  void keep(std::string const& data, std::string const& log) const {
    if (!lock_) return;
    for (auto const& entry : fs::directory_iterator(fs::path(path_).parent_path())) {
      if (entry.is_directory() && entry.path().filename().string().starts_with("postgres-"))
        fs::remove_all(entry.path());  // of other migrations, or half of one
    }
    run({"/bin/cp", "-a", "--reflink=auto", data, path_ + ".making"}, log, As::us);
    fs::rename(path_ + ".making", path_);
  }

 private:
  std::string path_;
  os::Fd lock_;
};

/// In memory where there is plenty: a cluster is 1,200 files, and each database 300 more.
std::string place() {
  struct statvfs room{};
  bool const memory = ::statvfs("/dev/shm", &room) == 0 && ::access("/dev/shm", W_OK) == 0 &&
                      room.f_bavail * room.f_frsize >= (std::uint64_t{1} << 30);
  return memory && !std::getenv("TMPDIR") ? "/dev/shm" : fs::temp_directory_path().string();
}

/// Directories of test programs that were killed.
void sweep() {
  std::error_code ignored;
  for (auto const& entry : fs::directory_iterator(place(), ignored)) {
    auto const name = entry.path().filename().string();
    if (!name.starts_with("space-pg-")) continue;
    int const pid = std::atoi(name.c_str() + 9);
    if (pid > 0 && ::kill(pid, 0) != 0 && errno == ESRCH) fs::remove_all(entry.path(), ignored);
  }
}

}  // namespace

Postgres& Postgres::instance() {
  static Postgres postgres;
  return postgres;
}

Postgres::Postgres() {
  sweep();
  directory_ = fmt::format("{}/space-pg-{}", place(), ::getpid());
  fs::create_directories(directory_);
  auto const user = database_user();
  if (::chown(directory_.c_str(), user.uid, user.gid) != 0) give_up("chown");
  {
    Prepared const prepared;
    auto const data = directory_ + "/data";
    if (!prepared.copy_to(data, directory_ + "/copy.log")) {
      make_cluster();
      prepared.keep(data, directory_ + "/copy.log");
    }
  }
  start();
  auto migrated = migrate(conninfo("space_template"));  // the roles, if nothing else
  if (!migrated) give_up(migrated.error().message());
}

void Postgres::make_cluster() {
  run({program("initdb"),
       "-D",
       directory_ + "/data",
       "-U",
       "space_owner",
       "-A",
       "trust",
       "--no-sync",
       "--no-locale",
       "--wal-segsize=1",
       "-E",
       "UTF8"},
      directory_ + "/initdb.log");
  start();
  auto migrated = migrate(conninfo("space_template"));
  if (!migrated) give_up(migrated.error().message());
  ::kill(pid_, SIGINT);  // in order: what is copied later has nothing to recover from
  ::waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

Postgres::~Postgres() {
  stop();
  std::error_code ignored;
  fs::remove_all(directory_, ignored);
}

void Postgres::start() {
  pid_ = spawn({program("postgres"),
                "-D",
                directory_ + "/data",
                "-k",
                directory_,
                "-c",
                "listen_addresses=",
                "-c",
                "fsync=off",
                "-c",
                "shared_buffers=16MB",
                "-c",
                "max_connections=120"},
               directory_ + "/postgres.log",
               As::database_user);
  for (int i = 0; i < 1000; ++i) {
    if (PQping(conninfo("postgres").c_str()) == PQPING_OK) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));  // a test helper, outside any loop
  }
  give_up("it did not start; see " + directory_ + "/postgres.log");
}

void Postgres::stop() {
  if (pid_ < 0) return;
  ::kill(pid_, SIGQUIT);
  ::waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

void Postgres::crash_and_restart() {
  stop();
  start();
}

std::string Postgres::conninfo(std::string const& database) const {
  return fmt::format("host={} user=space_owner dbname={}", directory_, database);
}

std::string Postgres::unused_database() {
  return conninfo(fmt::format("test_{}", ++made_));
}

std::string Postgres::make_database() {
  auto const name = fmt::format("test_{}", ++made_);
  query(conninfo("postgres"), fmt::format("create database {} template space_template", name));
  return conninfo(name);
}

std::vector<std::string> query(std::string const& conninfo, std::string const& sql) {
  std::unique_ptr<PGconn, decltype(&PQfinish)> const connection(PQconnectdb(conninfo.c_str()),
                                                                &PQfinish);
  std::unique_ptr<PGresult, decltype(&PQclear)> const result(PQexec(connection.get(), sql.c_str()),
                                                             &PQclear);
  auto const status = PQresultStatus(result.get());
  if (status != PGRES_TUPLES_OK && status != PGRES_COMMAND_OK)
    give_up(PQerrorMessage(connection.get()));
  std::vector<std::string> rows;
  for (int i = 0; i < PQntuples(result.get()); ++i)
    rows.emplace_back(PQgetvalue(result.get(), i, 0));
  return rows;
}

async::Task<World> make_world(Store& store, domain::Limits limits) {
  auto const deadline = base::system_clock().in(std::chrono::seconds(10));
  World world;
  auto organisation =
      co_await store.projects.create_organisation("org-" + base::random_hex(4), deadline);
  if (!organisation) co_return base::passing(organisation);
  world.organisation = organisation->public_id;
  auto project = co_await store.projects.create(world.organisation, "project", limits, deadline);
  if (!project) co_return base::passing(project);
  world.project = project->public_id;
  world.project_id = project->id;
  auto node = co_await store.nodes.upsert("node-1", "/run/space/worker", deadline);
  if (!node) co_return base::passing(node);
  NewBuild base;
  base.name = "base";
  base.build = "b0";
  auto build = co_await store.templates.register_build(std::move(base), deadline);
  if (!build) co_return base::passing(build);
  world.build_id = build->id;
  co_return world;
}

NewSandbox new_sandbox(World const& world) {
  NewSandbox sandbox;
  sandbox.public_id = base::SandboxId::make().str();
  sandbox.project_id = world.project_id;
  sandbox.node = "node-1";
  sandbox.build_id = world.build_id;
  sandbox.token_sha256 = base::random_hex(32);
  sandbox.operation_public_id = base::make_short_id('x');
  sandbox.lease_owner = "test";
  sandbox.actor = "ktest";
  return sandbox;
}

}  // namespace store::testing
