#pragma once

#include "os/fd.hpp"

#include <sys/types.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

/// Other programs, started with explicit arguments, environment and user; never through a shell.
/// For `space up` and its supervisor, which are single-threaded and may block.
namespace cli {

/// Who a program runs as.
struct Identity {
  uid_t user = 0;
  gid_t group = 0;
  std::vector<gid_t> supplementary;
};

struct Program {
  std::vector<std::string> arguments = {};    // arguments[0] is the path
  std::vector<std::string> environment = {};  // "NAME=value", complete
  std::optional<Identity> as = {};            // nothing: as the caller
  /// Delivered when the caller dies; 0 = none. The program's own children do not inherit it.
  int signal_on_parent_death = 0;
  bool own_session = false;
};

/// A running program. `pidfd` becomes readable when it ends; the caller reaps it.
struct Started {
  pid_t pid = 0;
  os::Fd pidfd;
};

/// Starts it with /dev/null as input. `out` and `err` are borrowed. Fails with the step and the
/// system's reason when the program could not be executed.
base::Result<Started> start_program(Program const& program, os::FdRef out, os::FdRef err);

struct Outcome {
  int exit_code = 0;  // 128 + signal when killed
  std::string out;
  std::string err;  // the last 64 KiB
};

/// Runs it to its end. `on_error_line` sees each line of stderr as it comes. Output over 16 MiB is
/// an error.
base::Result<Outcome> run_program(Program const& program,
                                  std::function<void(std::string_view)> on_error_line = {});

/// As run_program, but an exit code other than 0 is a failure whose message is the last line of
/// stderr.
base::Result<std::string> run_checked(std::vector<std::string> arguments);

/// PATH and locale only: what programs of the system get.
std::vector<std::string> plain_environment();

/// The first existing one of the usual directories, e.g. "/usr/sbin/mkfs.btrfs"; "" when absent.
std::string find_program(std::string_view name);

}  // namespace cli
