#pragma once

#include "cli/layout.hpp"

#include <boost/describe/class.hpp>

/// Keeps the programs of one installation running: the process behind `space up`, or a systemd
/// unit.
namespace cli {

/// What the supervisor tells others in <run_dir>/supervisor.json, rewritten at each change.
struct ServiceState {
  std::string name;
  std::string state;  // waiting, starting, running, ended
  int pid = 0;
  int restarts = 0;
  std::string last_exit;  // "", "exit 1", "signal 9"
};
BOOST_DESCRIBE_STRUCT(ServiceState, (), (name, state, pid, restarts, last_exit))

struct SupervisorState {
  int pid = 0;
  std::string state;  // starting, running, stopping
  std::vector<ServiceState> services;
};
BOOST_DESCRIBE_STRUCT(SupervisorState, (), (pid, state, services))

/// The state of a living supervisor of that run directory; not_found when none lives.
base::Result<SupervisorState> read_supervisor(wire::Config const& config);

/// Runs the programs until SIGTERM or SIGINT, then ends sandboxes and programs in order. Returns
/// the exit code. One per run directory (a lock says so): conflict otherwise.
///
/// Programs die with it (parent-death signal), machines do not: a supervisor that was killed and
/// started again finds them through the worker.
base::Result<int> supervise(wire::Config const& config);

/// Starts `space supervise` in a session of its own and returns when it holds its lock.
base::Result<pid_t> start_supervisor(wire::Config const& config, std::string const& space_program);

/// Asks it to stop and waits until it is gone, at most `limit`.
base::Result<void> stop_supervisor(wire::Config const& config, std::chrono::seconds limit);

/// Paths that both sides of an installation agree on.
std::string service_config_path(wire::Config const& config);  // for every program, no secrets
std::string database_config_path(
    wire::Config const& config);  // for those that may use the database

}  // namespace cli
