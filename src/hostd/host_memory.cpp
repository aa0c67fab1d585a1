// The action of Host by which a stopped machine's memory is kept.

#include "base/fault.hpp"
#include "base/log.hpp"
#include "hostd/answers.hpp"
#include "hostd/host.hpp"
#include "os/process.hpp"

#include <fcntl.h>

namespace hostd {
namespace {

base::Result<os::Fd> open_of(pid_t pid, char const* what) {
  os::Fd file(::open(fmt::format("/proc/{}/{}", pid, what).c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return base::fail_errno("open a machine's memory", what);
  return file;
}

}  // namespace

/// The kernel ties both to the process as it is now: they show nothing of a later one of the same
/// number, and what they show ends with it.
Answer Host::open_memory(std::uint32_t slot) {
  if (state_of(slot) != SlotState::running)
    return answer_of(Status::absent, "no machine runs there");
  if (SPACE_FAULT("hostd.vmm.memory_opened")) return answer_of(Status::failed, "told to fail");
  auto answer = answer_of(Status::ok);
  auto const& kept = kept_[slot];
  for (char const* what : {"pagemap", "mem"}) {
    auto file = open_of(kept.pid, what);
    if (!file) {
      base::log::error("memory_not_opened", {{"slot", slot}, {"why", file.error().detail()}});
      return answer_of(Status::failed, file.error().message());
    }
    answer.fds.push_back(std::move(*file));
  }
  // Looked at after they were opened: only then they are surely its own.
  if (os::has_ended(kept.pidfd)) return answer_of(Status::absent, "the machine has ended");
  return answer;
}

}  // namespace hostd
