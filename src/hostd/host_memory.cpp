// The action of Host by which a stopped machine's memory is kept.

#include "base/fault.hpp"
#include "base/log.hpp"
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
  Answer answer;
  auto const says = [&answer](Status status, std::string_view reason) {
    answer = {};
    answer.reply.status = status;
    reason.copy(answer.reply.reason.data(), answer.reply.reason.size() - 1);
  };
  if (state_of(slot) != SlotState::running) {
    says(Status::absent, "no machine runs there");
    return answer;
  }
  if (SPACE_FAULT("hostd.vmm.memory_opened")) {
    says(Status::failed, "told to fail");
    return answer;
  }
  auto const& kept = kept_[slot];
  for (char const* what : {"pagemap", "mem"}) {
    auto file = open_of(kept.pid, what);
    if (!file) {
      base::log::error("memory_not_opened", {{"slot", slot}, {"why", file.error().detail()}});
      says(Status::failed, file.error().message());
      return answer;
    }
    answer.fds.push_back(std::move(*file));
  }
  // Looked at after they were opened: only then they are surely its own.
  if (os::has_ended(kept.pidfd)) says(Status::absent, "the machine has ended");
  return answer;
}

}  // namespace hostd
