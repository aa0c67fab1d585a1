#include "agent/users_rights.hpp"

#include "base/assert.hpp"

#include <linux/capability.h>
#include <sys/fsuid.h>
#include <sys/syscall.h>

#include <unistd.h>

namespace agent {
namespace {

struct Capabilities {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2] = {};
};

// SAFETY: raw calls of this thread alone; the buffers have the sizes the kernel's interface fixes.
bool set_groups(std::vector<gid_t> const& groups) {
  return ::syscall(SYS_setgroups, groups.size(), groups.data()) == 0;
}

/// True when the thread has the id afterwards; setfsuid has no other way to report failure.
bool set_fsuid(uid_t uid) {
  ::setfsuid(uid);
  return static_cast<uid_t>(::setfsuid(static_cast<uid_t>(-1))) == uid;
}

bool set_fsgid(gid_t gid) {
  ::setfsgid(gid);
  return static_cast<gid_t>(::setfsgid(static_cast<gid_t>(-1))) == gid;
}

}  // namespace

ActingAs::ActingAs(User const& user) {
  if (::geteuid() != 0) return;
  auto const count = ::getgroups(0, nullptr);
  SPACE_ASSERT(count >= 0, "getgroups with no buffer only counts");
  groups_.resize(static_cast<std::size_t>(count));
  if (count > 0)
    SPACE_ASSERT(::getgroups(count, groups_.data()) == count,
                 "only this thread changes its groups");
  changed_ = true;
  SPACE_ASSERT(set_groups(user.groups) && set_fsgid(user.gid), "root may take any group");
  if (user.uid == 0) return;

  // Leaving uid 0 takes away what is about files (DAC_OVERRIDE, CHOWN…); the rest, such as reading
  // other processes by way of /proc, goes here.
  Capabilities own;
  SPACE_ASSERT(::syscall(SYS_capget, &own.header, own.data) == 0,
               "reading one's own capabilities cannot fail");
  effective_[0] = own.data[0].effective;
  effective_[1] = own.data[1].effective;
  SPACE_ASSERT(set_fsuid(user.uid), "root may take any user");
  own.data[0].effective = 0;
  own.data[1].effective = 0;
  SPACE_ASSERT(::syscall(SYS_capset, &own.header, own.data) == 0,
               "giving up capabilities is always allowed");
  dropped_ = true;
}

ActingAs::~ActingAs() {
  if (!changed_) return;
  if (dropped_) {
    Capabilities own;
    SPACE_ASSERT(::syscall(SYS_capget, &own.header, own.data) == 0,
                 "reading one's own capabilities cannot fail");
    own.data[0].effective = effective_[0];
    own.data[1].effective = effective_[1];
    SPACE_ASSERT(::syscall(SYS_capset, &own.header, own.data) == 0,
                 "what is permitted can be made effective again");
    SPACE_ASSERT(set_fsuid(0), "the effective user is still root");
  }
  SPACE_ASSERT(set_fsgid(::getegid()) && set_groups(groups_), "root may take any group");
}

}  // namespace agent
