#include "agent/filesystem_entry.hpp"

#include "agent/path.hpp"
#include "os/fd.hpp"

#include <sys/xattr.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <memory>

#include <boost/json/object.hpp>
#include <dirent.h>
#include <fcntl.h>
#include <fmt/chrono.h>
#include <unistd.h>

namespace agent {
namespace {

constexpr std::string_view metadata_prefix = "user.e2b.";

EntryType type_of(mode_t mode) {
  if (S_ISREG(mode)) return EntryType::file;
  if (S_ISDIR(mode)) return EntryType::directory;
  return EntryType::unspecified;
}

/// Where a link leads in the end; nothing when it dangles, loops or leads where the user may not
/// go.
std::optional<std::string> resolved(std::string const& path) {
  std::unique_ptr<char, decltype(&::free)> const real(::realpath(path.c_str(), nullptr), &::free);
  if (!real) return std::nullopt;
  return std::string(real.get());
}

Entry entry_from(std::string const& path, struct stat const& status) {
  Entry entry;
  entry.name = base_name(path);
  entry.path = path;
  entry.size = status.st_size;
  entry.type = type_of(status.st_mode);
  entry.mode = status.st_mode & 0777U;
  entry.permissions = permissions_text(status.st_mode);
  entry.uid = status.st_uid;
  entry.gid = status.st_gid;
  entry.modified_seconds = status.st_mtim.tv_sec;
  entry.modified_nanoseconds = static_cast<std::uint32_t>(status.st_mtim.tv_nsec);
  if (S_ISLNK(status.st_mode)) {
    struct stat target{};
    bool const leads = ::stat(path.c_str(), &target) == 0;
    entry.type = leads ? type_of(target.st_mode) : EntryType::unspecified;
    entry.mode = leads ? target.st_mode & 0777U : 0;
    entry.symlink_target = resolved(path).value_or(path);
  } else if (S_ISREG(status.st_mode) || S_ISDIR(status.st_mode)) {
    entry.metadata = metadata_of(path);
  }
  return entry;
}

struct CloseDirectory {
  void operator()(DIR* directory) const noexcept { ::closedir(directory); }
};

/// The names in a directory, sorted by their bytes.
FileResult<std::vector<std::string>> names_in(std::string const& path, std::size_t most) {
  os::Fd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NONBLOCK));
  if (!fd) return file_fail_errno(errno, "open", path);
  std::unique_ptr<DIR, CloseDirectory> const directory(::fdopendir(fd.get()));
  if (!directory) return file_fail_errno(errno, "open", path);
  static_cast<void>(fd.release());  // the stream closes it
  std::vector<std::string> names;
  for (;;) {
    errno = 0;
    // NOLINTNEXTLINE(concurrency-mt-unsafe): the stream is this call's own
    auto const* one = ::readdir(directory.get());
    if (one == nullptr) break;
    std::string_view const name(one->d_name);
    if (name == "." || name == "..") continue;
    if (names.size() >= most)
      return file_fail(ENOMEM,
                       fmt::format("more than {} entries in '{}': list less at once", most, path));
    names.emplace_back(name);
  }
  if (errno != 0) return file_fail_errno(errno, "read", path);
  std::ranges::sort(names);
  return names;
}

struct Listing {
  std::vector<Entry> entries;
  std::size_t entries_max;
};

/// Recursion is bounded by the length a path may have: each level adds at least two bytes.
FileResult<void> list_into(Listing& listing,
                           std::string const& path,
                           std::uint32_t depth,
                           bool is_root) {
  auto const names = names_in(path, listing.entries_max - listing.entries.size());
  if (!names) {
    if (is_root || names.error().error == ENOMEM) return std::unexpected(names.error());
    return {};
  }
  for (auto const& name : *names) {
    auto const child = path == "/" ? "/" + name : path + "/" + name;
    struct stat status{};
    if (child.size() >= PATH_MAX || ::lstat(child.c_str(), &status) != 0) continue;
    listing.entries.push_back(entry_from(child, status));
    if (!S_ISDIR(status.st_mode) || depth <= 1) continue;
    auto const below = list_into(listing, child, depth - 1, false);
    if (!below) return below;
  }
  return {};
}

std::string_view name_of(EntryType type) {
  switch (type) {
    case EntryType::file:
      return "FILE_TYPE_FILE";
    case EntryType::directory:
      return "FILE_TYPE_DIRECTORY";
    case EntryType::unspecified:
      break;
  }
  return "FILE_TYPE_UNSPECIFIED";
}

/// RFC 3339 as protobuf writes it: 0, 3, 6 or 9 digits of fraction. Years outside 1 to 9999 can't
/// be written.
std::string timestamp_text(std::int64_t seconds, std::uint32_t nanoseconds) {
  constexpr std::int64_t first = -62135596800;
  constexpr std::int64_t last = 253402300799;
  auto const when = std::clamp(seconds, first, last);
  auto text = fmt::format("{:%Y-%m-%dT%H:%M:%S}", fmt::gmtime(static_cast<std::time_t>(when)));
  if (nanoseconds % 1000000 == 0 && nanoseconds != 0)
    return fmt::format("{}.{:03}Z", text, nanoseconds / 1000000);
  if (nanoseconds % 1000 == 0 && nanoseconds != 0)
    return fmt::format("{}.{:06}Z", text, nanoseconds / 1000);
  return nanoseconds == 0 ? text + "Z" : fmt::format("{}.{:09}Z", text, nanoseconds);
}

std::vector<std::string> split_names(std::string const& list) {
  std::vector<std::string> names;
  for (std::size_t at = 0; at < list.size();) {
    auto const end = std::min(list.find('\0', at), list.size());
    names.push_back(list.substr(at, end - at));
    at = end + 1;
  }
  return names;
}

template <class List> std::vector<std::string> attribute_names(List list) {
  auto const size = list(nullptr, 0);
  if (size <= 0) return {};
  std::string buffer(static_cast<std::size_t>(size), '\0');
  auto const got = list(buffer.data(), buffer.size());
  buffer.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
  return split_names(buffer);
}

}  // namespace

FileResult<Entry> entry_of(std::string const& path) {
  struct stat status{};
  auto const clean = clean_path(path);
  // The given path, not the cleaned one: "a/../b" means what the kernel makes of it.
  if (::lstat(path.c_str(), &status) != 0) {
    if (errno == ENOENT || errno == ENOTDIR)
      return file_fail(ENOENT, fmt::format("path '{}' does not exist", path));
    return file_fail_errno(errno, "look at", path);
  }
  return entry_from(clean, status);
}

FileResult<std::vector<Entry>> list_directory(std::string const& path,
                                              std::uint32_t depth,
                                              std::size_t entries_max) {
  struct stat status{};
  if (::stat(path.c_str(), &status) != 0) {
    if (errno == ENOENT || errno == ENOTDIR)
      return file_fail(ENOENT, fmt::format("path '{}' does not exist", path));
    return file_fail_errno(errno, "look at", path);
  }
  if (!S_ISDIR(status.st_mode))
    return file_fail(ENOTDIR, fmt::format("path is not a directory: {}", path));
  Listing listing{{}, entries_max};
  auto const done = list_into(listing, clean_path(path), std::max<std::uint32_t>(depth, 1), true);
  if (!done) return std::unexpected(done.error());
  return std::move(listing.entries);
}

std::string permissions_text(mode_t mode) {
  std::string text;
  if (S_ISDIR(mode)) text += 'd';
  if (S_ISLNK(mode)) text += 'L';
  if (S_ISBLK(mode)) text += 'D';
  if (S_ISCHR(mode)) text += "Dc";
  if (S_ISFIFO(mode)) text += 'p';
  if (S_ISSOCK(mode)) text += 'S';
  if (mode & S_ISUID) text += 'u';
  if (mode & S_ISGID) text += 'g';
  if (mode & S_ISVTX) text += 't';
  if (text.empty()) text = "-";
  for (int bit = 8; bit >= 0; --bit)
    text += (mode >> bit) & 1U ? "xwr"[bit % 3] : '-';
  return text;
}

json::object json_of(Entry const& entry, OwnerNames const& names) {
  json::object object;
  object["name"] = as_utf8(entry.name);
  object["type"] = name_of(entry.type);
  object["path"] = as_utf8(entry.path);
  object["size"] = std::to_string(entry.size);
  object["mode"] = entry.mode;
  object["permissions"] = entry.permissions;
  object["owner"] = as_utf8(names.user(entry.uid));
  object["group"] = as_utf8(names.group(entry.gid));
  object["modifiedTime"] = timestamp_text(entry.modified_seconds, entry.modified_nanoseconds);
  if (entry.symlink_target) object["symlinkTarget"] = as_utf8(*entry.symlink_target);
  if (!entry.metadata.empty()) {
    json::object metadata;
    for (auto const& [key, value] : entry.metadata)
      metadata[as_utf8(key)] = as_utf8(value);
    object["metadata"] = std::move(metadata);
  }
  return object;
}

std::map<std::string, std::string> metadata_of(std::string const& path) {
  std::map<std::string, std::string> metadata;
  auto const names = attribute_names(
      [&](char* into, std::size_t size) { return ::listxattr(path.c_str(), into, size); });
  for (auto const& name : names) {
    if (!name.starts_with(metadata_prefix)) continue;
    // What others put there may be larger than what we would: such a value is not metadata of ours.
    char value[4096];
    auto const size = ::getxattr(path.c_str(), name.c_str(), value, sizeof value);
    if (size >= 0)
      metadata.emplace(name.substr(metadata_prefix.size()),
                       std::string(value, static_cast<std::size_t>(size)));
  }
  return metadata;
}

FileResult<void> set_metadata(int file,
                              std::string const& path,
                              std::map<std::string, std::string> const& metadata) {
  auto const names =
      attribute_names([&](char* into, std::size_t size) { return ::flistxattr(file, into, size); });
  for (auto const& name : names) {
    if (!name.starts_with(metadata_prefix) ||
        metadata.contains(name.substr(metadata_prefix.size())))
      continue;
    if (::fremovexattr(file, name.c_str()) != 0 && errno != ENODATA)
      return file_fail_errno(errno, "remove metadata of", path);
  }
  for (auto const& [key, value] : metadata) {
    auto const name = std::string(metadata_prefix) + key;
    if (::fsetxattr(file, name.c_str(), value.data(), value.size(), 0) != 0)
      return file_fail_errno(errno, "set metadata of", path);
  }
  return {};
}

}  // namespace agent
