#include "audit/reader.hpp"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>

namespace audit {
namespace {

constexpr std::string_view head = "{\"seq\":";

std::uint64_t sequence_of(std::string_view line) {
  std::uint64_t sequence = 0;
  if (line.starts_with(head))
    std::from_chars(line.data() + head.size(), line.data() + line.size(), sequence);
  return sequence;
}

std::vector<std::string> files_in(std::string const& directory) {
  std::vector<std::string> out;
  std::error_code ignored;
  for (auto const& entry : std::filesystem::directory_iterator(directory, ignored)) {
    auto const name = entry.path().filename().string();
    if (name.starts_with("audit-") && name.ends_with(".jsonl")) out.push_back(entry.path());
  }
  std::ranges::sort(out);
  return out;
}

std::uint64_t first_sequence(std::string const& path) {
  std::ifstream in(path, std::ios::binary);
  std::string line;
  return std::getline(in, line) ? sequence_of(line) : 0;
}

/// The file in which the line after `after` stands: the last one that begins at or before it.
std::size_t first_of_interest(std::vector<std::string> const& files, std::uint64_t after) {
  std::size_t start = 0;
  for (std::size_t i = 1; i < files.size(); ++i) {
    auto const first = first_sequence(files[i]);
    if (first == 0 || first > after + 1) break;
    start = i;
  }
  return start;
}

}  // namespace

base::Result<Page> read_page(std::string const& directory, Query const& query) {
  Page page;
  page.next_after = query.after;
  auto const wanted =
      query.sandbox.empty() ? std::string() : "\"sandbox\":\"" + query.sandbox + "\"";
  auto const files = files_in(directory);
  std::uint64_t scanned = 0;
  for (auto i = first_of_interest(files, query.after); i < files.size(); ++i) {
    std::ifstream in(files[i], std::ios::binary);
    std::string line;
    while (std::getline(in, line)) {
      if (in.eof()) return page;  // being written
      auto const sequence = sequence_of(line);
      if (sequence <= query.after) continue;
      if (page.lines.size() >= query.limit || scanned > query.scan_bytes_max) {
        page.more = true;
        return page;
      }
      scanned += line.size() + 1;
      page.next_after = sequence;
      if (wanted.empty() || line.find(wanted) != std::string::npos) page.lines.push_back(line);
    }
  }
  return page;
}

}  // namespace audit
