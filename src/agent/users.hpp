#pragma once

#include "base/result.hpp"

#include <sys/types.h>

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

/// The guest's own users, read from its passwd and group files: a static program has no getpwnam.
/// Whoever is root in the guest writes these files, so they may hold anything; what does not look
/// like a line is skipped.
namespace agent {

struct User {
  std::string name;
  uid_t uid = 0;
  gid_t gid = 0;
  std::string home;   // absolute; "/" when the line names none
  std::string shell;  // "/bin/sh" when the line names none
  /// The primary group first, then every group that lists the user; what setgroups() wants.
  std::vector<gid_t> groups;
};

/// `unauthenticated` with "invalid username: 'x'" when there is no such user in `etc_dir`/passwd.
/// Images need not have that file: "root" exists always, and a decimal number is a user id (of
/// nobody in particular when no line has it).
base::Result<User> find_user(std::string const& etc_dir, std::string_view name);

/// The user of a request: the one it names, else the default one, else (in an image that has no
/// such user) root, as whom everything in such images runs elsewhere.
base::Result<User> find_caller(std::string const& etc_dir,
                               std::optional<std::string> const& named,
                               std::string const& default_user);

/// Names for the owners of files; the number as text when a number has no name.
class OwnerNames {
 public:
  explicit OwnerNames(std::string const& etc_dir);
  std::string user(uid_t uid) const;
  std::string group(gid_t gid) const;

 private:
  std::map<uid_t, std::string> users_;
  std::map<gid_t, std::string> groups_;
};

}  // namespace agent
