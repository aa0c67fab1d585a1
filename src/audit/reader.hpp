#pragma once

#include "base/result.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace audit {

/// A page of the log in its order, for those who list it. Reading proves nothing: verify() does.
struct Query {
  std::string sandbox;  // "" = of all
  std::uint64_t after = 0;
  std::uint32_t limit = 100;
  /// Bytes that one call looks at; a page may be short, or empty, and still have a next one.
  std::uint64_t scan_bytes_max = 32ULL << 20;
};

struct Page {
  std::vector<std::string> lines;  // as they stand in the log
  std::uint64_t next_after = 0;
  bool more = false;
};

/// An empty page when there is no log yet.
base::Result<Page> read_page(std::string const& directory, Query const& query);

}  // namespace audit
