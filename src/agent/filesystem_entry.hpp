#pragma once

#include "agent/filesystem_failure.hpp"
#include "agent/users.hpp"

#include <sys/stat.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

/// What clients are told about one file: the message filesystem.EntryInfo. Everything here blocks
/// and runs on the pool.
namespace agent {

enum class EntryType : std::uint8_t { unspecified, file, directory };

struct Entry {
  std::string name;
  EntryType type =
      EntryType::unspecified;  // of a link: what it leads to; unspecified when it dangles
  std::string path;
  std::int64_t size = 0;
  std::uint32_t mode = 0;   // permission bits; of a link: those of its target
  std::string permissions;  // "-rw-r--r--", "drwxr-xr-x", "Lrwxrwxrwx"
  uid_t uid = 0;
  gid_t gid = 0;
  std::int64_t modified_seconds = 0;
  std::uint32_t modified_nanoseconds = 0;
  std::optional<std::string>
      symlink_target;  // absolute and resolved; the link's own path when it dangles
  std::map<std::string, std::string> metadata;  // from the extended attributes user.e2b.*
};

/// lstat and what belongs to it. `path` is absolute; the entry's is the cleaned one.
FileResult<Entry> entry_of(std::string const& path);

/// Below the directory `path`: depth-first, names in the order of their bytes, parents before their
/// children, links not descended, at most `depth` levels (0 counts as 1). What vanishes meanwhile
/// is left out, and what the user may not open is listed without its inside. ENOTDIR, ENOENT;
/// EMFILE-like failure beyond `entries_max`.
FileResult<std::vector<Entry>> list_directory(std::string const& path,
                                              std::uint32_t depth,
                                              std::size_t entries_max);

/// Go's way of writing a mode, which clients parse: type letters, then nine permission bits.
std::string permissions_text(mode_t mode);

json::object json_of(Entry const& entry, OwnerNames const& names);

/// The attributes user.e2b.* of an open file or a path (links followed); empty when there are none.
std::map<std::string, std::string> metadata_of(std::string const& path);
/// Sets the given ones and takes away all others of ours. On a file system without attributes:
/// EOPNOTSUPP.
FileResult<void> set_metadata(int file,
                              std::string const& path,
                              std::map<std::string, std::string> const& metadata);

}  // namespace agent
