#pragma once

#include "base/result.hpp"

#include <functional>
#include <memory>
#include <string>
#include <string_view>

/// The audit log of one worker: JSON lines in which each one carries the SHA-256 of the line
/// before, so that a line that was changed, removed or put in between is found by walking. Kept in
/// files of a bounded size; a later file begins with the hash of the earlier one's last line.
namespace audit {

struct Retired;

/// Instead of what retention.hpp says, for tests.
struct Limits {
  std::uint64_t file_bytes_max = 0;  // 0: as retention.hpp says
  std::uint32_t files_max = 0;       // the oldest goes when there are more
};

class Log {
 public:
  /// Opens or begins `<directory>/audit-NNNNNNNN.jsonl`. A half-written last line (power cut) is
  /// closed with a line that says so; the chain goes on.
  static base::Result<std::unique_ptr<Log>> open(std::string directory, Limits limits = {});
  ~Log();

  /// `record` is a JSON object without "seq", "prev" and "hash". `exhausted` on a full disk: the
  /// caller decides what a sandbox may still do without an audit.
  base::Result<void> append(std::string_view record);
  /// Takes away what is too old or too much, oldest files first and never the current one, after
  /// noting its last line. Called by itself whenever a new file is begun; from time to time by who
  /// wants ages kept.
  base::Result<void> retire();
  /// What retire() notes is signed with it. Without one the note says no more than the chain.
  void sign_with(std::function<base::Result<void>(Retired&)> sign);
  /// On disk when this returns.
  base::Result<void> sync();
  std::uint64_t next_sequence() const noexcept;
  std::string const& last_hash() const noexcept;

 private:
  struct Impl;
  explicit Log(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

struct Verdict {
  std::uint64_t lines = 0;
  std::uint32_t files = 0;
  std::uint64_t first_sequence = 0;
  std::uint64_t retired_through = 0;  // what came before was taken away by retention; 0: nothing
  std::uint64_t last_sequence = 0;
  std::string last_hash;
  std::string problem;  // "" = whole; else the file, the line and what is wrong
};

/// Walks all files of a directory. `each`, when given, gets every line that was verified.
base::Result<Verdict> verify(std::string const& directory,
                             std::function<void(std::string_view)> const& each = {});

/// A line that was there once, kept where whoever can change the log cannot change it.
struct Checkpoint {
  std::uint64_t sequence = 0;
  std::string hash;
};

/// verify(), and that the checkpoint's line is still there as it was, or was taken by retention. A
/// chain alone does not tell that its end was cut off, or that all of it was written anew.
base::Result<Verdict> verify_since(std::string const& directory, Checkpoint const& checkpoint);

}  // namespace audit
