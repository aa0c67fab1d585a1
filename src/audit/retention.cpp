#include "audit/retention.hpp"

#include "os/fd.hpp"

#include <algorithm>
#include <charconv>
#include <fstream>

#include <fcntl.h>
#include <unistd.h>

namespace audit {
namespace {

using base::Code;

constexpr std::uint64_t mib_least = 8;
constexpr std::uint64_t mib_most = 1 << 20;
constexpr std::uint32_t days_most = 3'650;
constexpr std::uint64_t file_bytes_max = 64ULL << 20;
constexpr std::size_t hash_digits = 64;

base::Result<void> check(Retention const& retention) {
  if (retention.keep_mib < mib_least || retention.keep_mib > mib_most)
    return base::fail(Code::invalid_argument, "keep 8 to 1048576 MiB");
  if (retention.keep_days > days_most)
    return base::fail(Code::invalid_argument, "keep at most 3650 days; 0: no matter how old");
  return {};
}

/// Whole or not at all.
base::Result<void> write_whole(std::string const& path, std::string_view text) {
  auto const next = path + ".new";
  // Of an earlier try; root must not write into what somebody else put there.
  ::unlink(next.c_str());
  os::Fd file(::open(next.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0644));
  if (!file) return base::fail_errno("write", next);
  if (::write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()))
    return base::fail_errno("write", next);
  if (auto synced = file.sync_and_close(); !synced) return synced;
  if (::rename(next.c_str(), path.c_str()) != 0) return base::fail_errno("write", path);
  return {};
}

/// "12 34\n" → the words; false when there are others than expected.
bool split(std::string const& line, std::string_view& first, std::string_view& second) {
  std::string_view const all = line;
  auto const space = all.find(' ');
  if (space == std::string_view::npos) return false;
  first = all.substr(0, space);
  second = all.substr(space + 1);
  return true;
}

template <class T> bool number(std::string_view text, T& out) {
  auto const [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc() && end == text.data() + text.size();
}

}  // namespace

std::uint64_t Retention::file_bytes() const noexcept {
  return std::min(file_bytes_max, keep_bytes() / 8);
}

base::Result<Retention> read_retention(std::string const& directory) {
  auto const path = directory + "/retention";
  std::ifstream in(path);
  if (!in) return Retention{};
  std::string line;
  std::getline(in, line);
  Retention out;
  std::string_view mib;
  std::string_view days;
  bool const read =
      split(line, mib, days) && number(mib, out.keep_mib) && number(days, out.keep_days);
  if (!read || !check(out)) return base::fail(Code::invalid_argument, path + " is no retention");
  return out;
}

base::Result<void> write_retention(std::string const& directory, Retention const& retention) {
  if (auto ok = check(retention); !ok) return ok;
  return write_whole(directory + "/retention",
                     fmt::format("{} {}\n", retention.keep_mib, retention.keep_days));
}

base::Result<Retired> read_retired(std::string const& directory) {
  auto const path = directory + "/retired";
  std::ifstream in(path);
  if (!in) return Retired{};
  std::string line;
  std::getline(in, line);
  Retired out;
  std::string_view through;
  std::string_view hash;
  bool const two = split(line, through, hash) && number(through, out.through);
  out.hash = hash.substr(0, hash.find(' '));
  if (out.hash.size() < hash.size()) out.signature = hash.substr(out.hash.size() + 1);
  if (!two || out.hash.size() != hash_digits)
    return base::fail(Code::invalid_argument, path + " does not say what was taken away");
  return out;
}

base::Result<void> write_retired(std::string const& directory, Retired const& retired) {
  return write_whole(directory + "/retired",
                     fmt::format("{} {}{}{}\n",
                                 retired.through,
                                 retired.hash,
                                 retired.signature.empty() ? "" : " ",
                                 retired.signature));
}

}  // namespace audit
