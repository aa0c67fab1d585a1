#pragma once

#include "hostd/client.hpp"
#include "hostd/jail.hpp"
#include "os/cgroup.hpp"
#include "os/fd.hpp"
#include "wire/config.hpp"

#include <chrono>
#include <functional>
#include <string>

#include <gtest/gtest.h>

namespace test {

/// True as soon as `condition` holds; false after `limit`. For what another process or the kernel
/// does in its own time.
bool eventually(std::function<bool()> const& condition,
                std::chrono::seconds limit = std::chrono::seconds(10));

/// An installation of its own: directories, instance name, user ids. A watcher process removes
/// everything of it when the test ends, also when it is killed.
class Installation {
 public:
  Installation();
  ~Installation();
  Installation(Installation const&) = delete;
  Installation& operator=(Installation const&) = delete;

  wire::Config const& config() const { return config_; }

  /// Before hostd is started.
  void configure(std::function<void(wire::Config&)> const& change);

  std::string directory() const { return config_.run_dir; }

  /// Processes with a user id of the installation.
  std::vector<pid_t> processes() const;
  /// Everything that is there on account of the installation, one line each: processes, mounts,
  /// files below hostd's directory, control groups. The directories that hostd keeps for itself do
  /// not count.
  std::vector<std::string> holdings() const;

 private:
  void clean_up() const;

  wire::Config config_;
  os::Fd watcher_;  // closing it lets the watcher clean up
  pid_t watcher_pid_ = 0;
};

/// A running space-hostd of an installation.
class Hostd {
 public:
  explicit Hostd(Installation const& installation) : installation_(installation) { start(); }

  ~Hostd() { stop(SIGTERM); }

  Hostd(Hostd const&) = delete;
  Hostd& operator=(Hostd const&) = delete;

  void start();
  /// Waits for its end.
  void stop(int signal);
  /// "point action" for base::fault_point; must be told before start().
  void arm(std::string const& line) const;
  bool armed() const;
  /// True when it died by itself.
  bool died();

  hostd::Client client() const { return hostd::Client(installation_.config().hostd_socket()); }

  pid_t pid() const { return pid_; }

 private:
  std::string fault_file() const { return installation_.directory() + "/faults"; }

  Installation const& installation_;
  pid_t pid_ = 0;
};

/// What a jailed probe said and how it ended.
struct Probed {
  std::string said;
  int wait_status = -1;

  bool killed_by(int signal) const;
};

struct ProbeOptions {
  bool filtered = true;
  bool kvm = false;
  std::uint32_t user = 0;  // 0: the installation's first slot
  std::vector<int> fds{};
  std::vector<std::string> group_doors{};
  std::uint64_t file_bytes_max = 0;
  std::uint32_t tasks_max = 0;
};

/// A jail with jail_probe in place of a VMM.
class ProbeJail {
 public:
  explicit ProbeJail(Installation const& installation);
  /// Starts, waits for its end.
  Probed run(std::vector<std::string> arguments, ProbeOptions const& options = {}) const;

  struct Running {
    hostd::Jailed process;
    os::Fd output;
  };

  Running start(std::vector<std::string> arguments, ProbeOptions const& options = {}) const;

 private:
  std::uint32_t user_;
  os::Fd view_;
};

std::string read_to_end(os::Fd const& from);

}  // namespace test
