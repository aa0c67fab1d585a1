#include "agent/users.hpp"

#include "os/fd.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>

#include <fcntl.h>
#include <unistd.h>

namespace agent {
namespace {

/// More than any real file; keeps a hostile one from eating the agent's memory.
constexpr std::size_t file_bytes_max = 1 << 20;
constexpr std::size_t groups_max = 4096;

/// "" when it is missing, no regular file (opening a FIFO must not hang us) or unreadable.
std::string content_of(std::string const& path) {
  os::Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  struct stat status{};
  if (!fd || ::fstat(fd.get(), &status) != 0 || !S_ISREG(status.st_mode)) return {};
  std::string content;
  while (content.size() < file_bytes_max) {
    char buffer[16384];
    auto const count = ::read(fd.get(), buffer, sizeof buffer);
    if (count <= 0) break;
    content.append(buffer, static_cast<std::size_t>(count));
  }
  return content;
}

std::vector<std::string_view> split(std::string_view text, char at) {
  std::vector<std::string_view> parts;
  for (;;) {
    auto const cut = text.find(at);
    parts.push_back(text.substr(0, cut));
    if (cut == std::string_view::npos) return parts;
    text.remove_prefix(cut + 1);
  }
}

/// A user or group number. The highest means "leave unchanged" to the kernel and so is none.
std::optional<unsigned> number_of(std::string_view text) {
  unsigned value = 0;
  auto const [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (problem != std::errc() || end != text.data() + text.size() || text.empty())
    return std::nullopt;
  if (value == std::numeric_limits<unsigned>::max()) return std::nullopt;
  return value;
}

/// Calls `take(fields)` for each line with exactly `count` fields, a name, and no NUL.
template <class F> void each_line(std::string_view content, std::size_t count, F take) {
  for (auto const line : split(content, '\n')) {
    if (line.empty() || line.find('\0') != std::string_view::npos) continue;
    auto const fields = split(line, ':');
    if (fields.size() == count && !fields[0].empty()) take(fields);
  }
}

std::vector<gid_t> groups_of(std::string const& etc_dir, std::string_view name, gid_t primary) {
  std::vector<gid_t> groups{primary};
  each_line(content_of(etc_dir + "/group"), 4, [&](auto const& fields) {
    auto const gid = number_of(fields[2]);
    auto const members = split(fields[3], ',');
    if (!gid || std::ranges::find(members, name) == members.end()) return;
    if (groups.size() < groups_max && std::ranges::find(groups, *gid) == groups.end())
      groups.push_back(*gid);
  });
  return groups;
}

std::optional<User> user_without_a_line(std::string const& etc_dir, std::string_view name) {
  if (name == "root") return User{"root", 0, 0, "/", "/bin/sh", {}};
  auto const uid = number_of(name);
  if (!uid) return std::nullopt;
  User out{std::string(name), *uid, 0, "/", "/bin/sh", {}};
  bool found = false;
  each_line(content_of(etc_dir + "/passwd"), 7, [&](auto const& fields) {
    auto const gid = number_of(fields[3]);
    if (found || number_of(fields[2]) != uid || !gid) return;
    found = true;
    out = User{
        std::string(fields[0]), *uid, *gid, std::string(fields[5]), std::string(fields[6]), {}};
  });
  return out;
}

}  // namespace

base::Result<User> find_caller(std::string const& etc_dir,
                               std::optional<std::string> const& named,
                               std::string const& default_user) {
  if (named) return find_user(etc_dir, *named);
  auto user = find_user(etc_dir, default_user);
  if (!user) return find_user(etc_dir, "root");
  return user;
}

base::Result<User> find_user(std::string const& etc_dir, std::string_view name) {
  std::optional<User> found;
  each_line(content_of(etc_dir + "/passwd"), 7, [&](auto const& fields) {
    auto const uid = number_of(fields[2]);
    auto const gid = number_of(fields[3]);
    if (found || fields[0] != name || !uid || !gid) return;
    found = User{std::string(name), *uid, *gid, std::string(fields[5]), std::string(fields[6]), {}};
  });
  if (!found) found = user_without_a_line(etc_dir, name);
  if (!found)
    return base::fail(base::Code::unauthenticated, fmt::format("invalid username: '{}'", name));
  if (!found->home.starts_with('/')) found->home = "/";
  if (found->shell.empty()) found->shell = "/bin/sh";
  found->groups = groups_of(etc_dir, found->name, found->gid);
  return *std::move(found);
}

OwnerNames::OwnerNames(std::string const& etc_dir) {
  // The first line of a number wins, as in the C library. Names go into JSON: the codec deals with
  // any bytes.
  each_line(content_of(etc_dir + "/passwd"), 7, [&](auto const& fields) {
    if (auto const uid = number_of(fields[2])) users_.emplace(*uid, fields[0]);
  });
  each_line(content_of(etc_dir + "/group"), 4, [&](auto const& fields) {
    if (auto const gid = number_of(fields[2])) groups_.emplace(*gid, fields[0]);
  });
}

std::string OwnerNames::user(uid_t uid) const {
  auto const found = users_.find(uid);
  return found == users_.end() ? std::to_string(uid) : found->second;
}

std::string OwnerNames::group(gid_t gid) const {
  auto const found = groups_.find(gid);
  return found == groups_.end() ? std::to_string(gid) : found->second;
}

}  // namespace agent
