#pragma once

#include "cli/selftest_host.hpp"
#include "os/fd.hpp"

#include <sys/types.h>

namespace cli {

/// What the suite plants on the host to be found, so that there is something behind each wall also
/// where no sandbox runs: a secret that everybody may read, sockets that everybody may connect to,
/// a process of the intruder's own user, shared memory, a descriptor, a variable.
class Targets {
 public:
  static base::Result<std::unique_ptr<Targets>> plant(wire::Config const& config, uid_t intruder);
  ~Targets();
  Targets(Targets const&) = delete;
  Targets& operator=(Targets const&) = delete;

  std::string const& directory() const { return directory_; }

  /// Everything to try, with what is planted and what this installation has.
  std::vector<Attempt> attempts(wire::Config const& config) const;

 private:
  Targets() = default;
  base::Result<void> plant_files();
  base::Result<void> plant_sockets();
  base::Result<void> plant_process(uid_t intruder);

  std::string directory_;
  std::string port_;
  os::Fd stream_, packets_, nameless_, tcp_, leaked_;
  pid_t victim_ = 0;
  int shared_memory_ = -1;
};

}  // namespace cli
