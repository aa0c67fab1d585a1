#pragma once

#include "agent/filesystem_failure.hpp"
#include "agent/users.hpp"
#include "os/fd.hpp"

#include <sys/types.h>

#include <map>
#include <optional>
#include <string>

namespace agent {

/// One file that is being uploaded: made or emptied at once, filled in place. All of it blocks.
class FileWriter {
 public:
  /// Makes missing parents. A new file is created, then chowned, then written, in exactly these
  /// steps, because watchers count them; an existing one is chowned, then emptied, and keeps its
  /// mode. Errors: EISDIR for a directory, EINVAL for what is no regular
  /// file.
  static FileResult<FileWriter> open(std::string path, User const& user);

  FileResult<void> write(std::string_view bytes);
  /// The file has exactly this metadata afterwards and, when it says so, these permission bits.
  FileResult<void> finish(std::map<std::string, std::string> const& metadata,
                          std::optional<mode_t> mode);
  /// After a failure: takes away what this upload created. An older file stays, with what was
  /// written.
  void discard() noexcept;

  std::string const& path() const noexcept { return path_; }

 private:
  FileWriter(os::Fd file, std::string path, bool created)
      : file_(std::move(file)), path_(std::move(path)), created_(created) {}

  os::Fd file_;
  std::string path_;
  bool created_ = false;
};

}  // namespace agent
