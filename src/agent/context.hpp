#pragma once

#include "base/secret.hpp"

#include <map>
#include <string>

namespace agent {

/// What all parts of the agent share: set at start, then changed by POST /init alone. One thread
/// (the loop's) touches it; whatever runs on the blocking pool takes copies of what it needs.
struct Context {
  /// Where the user data base lies ("/etc" in the guest; tests give a directory of their own).
  std::string etc_dir = "/etc";
  /// True for PID 1 of a machine: only then clock, entropy pool, hostname and files in /etc are
  /// ours to change.
  bool owns_machine = false;

  std::string default_user = "user";
  /// "" means the home of the user who asks.
  std::string default_workdir;
  /// Variables of the sandbox; a command's own ones win over them.
  std::map<std::string, std::string> env;
  /// A gateway's authority was added to the guest's own (Machine::trust_authority): programs that
  /// bring a list of their own are pointed to the guest's.
  bool trusts_gateway = false;
  /// Empty: requests are not checked.
  base::Secret access_token;
  /// Empty until the first /init.
  base::Secret init_key;
};

}  // namespace agent
