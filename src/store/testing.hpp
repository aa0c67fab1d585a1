#pragma once

#include "store/store.hpp"

/// For tests: a real PostgreSQL of this process, started on first use as an unprivileged user in a
/// directory of its own, gone with the process (also when that is killed). Each database is a copy
/// of a migrated one, so that tests do not see each other.
namespace store::testing {

class Postgres {
 public:
  /// The one of this process. Aborts with a message when PostgreSQL cannot be started.
  static Postgres& instance();

  /// conninfo of a fresh, migrated database.
  std::string make_database();
  /// conninfo of a database that does not exist yet.
  std::string unused_database();

  std::string const& directory() const noexcept { return directory_; }

  /// SIGKILL to the server with all its sessions, then start again: what a crash does.
  void crash_and_restart();
  void stop();
  void start();

 private:
  Postgres();
  ~Postgres();
  void make_cluster();
  std::string conninfo(std::string const& database) const;

  std::string directory_;
  int pid_ = -1;
  int made_ = 0;
};

/// Runs plain SQL and returns the first column of the rows, for checks that no function of the
/// store makes.
std::vector<std::string> query(std::string const& conninfo, std::string const& sql);

/// An organisation, a project with these limits, a node "node-1" and the template "base": what a
/// sandbox needs. `build_id` is the build's.
struct World {
  std::string organisation, project_id, project, build_id;
};

async::Task<World> make_world(Store& store, domain::Limits limits = {});

/// A valid sandbox of that world.
NewSandbox new_sandbox(World const& world);

}  // namespace store::testing
