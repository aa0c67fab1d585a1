#pragma once

#include "base/result.hpp"

#include <cstdint>
#include <string>

/// How much of the log is kept, in a file beside it, so that it can be changed while the worker
/// runs.
namespace audit {

struct Retention {
  std::uint64_t keep_mib = 1024;
  std::uint32_t keep_days = 0;  // 0: no matter how old

  /// Of one file: an eighth of all of it, so that what goes at once is little. At most 64 MiB.
  std::uint64_t file_bytes() const noexcept;

  std::uint64_t keep_bytes() const noexcept { return keep_mib << 20; }
};

/// The default where nothing was said. invalid_argument for a file that says something else.
base::Result<Retention> read_retention(std::string const& directory);
/// invalid_argument outside 8 MiB to 1 TiB and 3,650 days.
base::Result<void> write_retention(std::string const& directory, Retention const& retention);

/// Which line was the last that was taken away, so that whoever verifies knows that the first one
/// that is there is the next. Nothing: none was. The only thing that moves a log's beginning.
struct Retired {
  std::uint64_t through = 0;  // sequence number
  std::string hash;
  std::string signature;  // with the node's audit key (signing.cpp); "": a log without a key
};

base::Result<Retired> read_retired(std::string const& directory);
base::Result<void> write_retired(std::string const& directory, Retired const& retired);

}  // namespace audit
