#include "audit/chain.hpp"

#include "audit/retention.hpp"
#include "os/fd.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>

#include <fcntl.h>
#include <openssl/sha.h>
#include <unistd.h>

namespace audit {
namespace {

constexpr std::string_view genesis =
    "0000000000000000000000000000000000000000000000000000000000000000";
constexpr std::size_t hash_digits = 64;
constexpr std::int64_t seconds_of_day = 86'400;

std::string sha256_hex(std::string_view bytes) {
  std::array<unsigned char, SHA256_DIGEST_LENGTH> digest{};
  // SAFETY: char may alias unsigned char.
  SHA256(reinterpret_cast<unsigned char const*>(bytes.data()), bytes.size(), digest.data());
  std::string out;
  for (auto const byte : digest)
    out += fmt::format("{:02x}", byte);
  return out;
}

std::string file_name(std::uint32_t number) {
  return fmt::format("audit-{:08}.jsonl", number);
}

std::vector<std::string> files_of(std::string const& directory) {
  std::vector<std::string> names;
  std::error_code ignored;
  for (auto const& entry : std::filesystem::directory_iterator(directory, ignored)) {
    auto const name = entry.path().filename().string();
    if (name.size() == file_name(0).size() && name.starts_with("audit-") &&
        name.ends_with(".jsonl"))
      names.push_back(name);
  }
  std::ranges::sort(names);
  return names;
}

/// A line is `{"seq":N,"prev":"H",<record>,"hash":"H"}`; its hash covers everything before
/// `,"hash"`.
std::string make_line(std::uint64_t sequence,
                      std::string_view previous,
                      std::string_view record,
                      std::string& hash) {
  auto const inner = record.substr(1, record.size() - 2);
  auto line = fmt::format(
      R"({{"seq":{},"prev":"{}"{}{})", sequence, previous, inner.empty() ? "" : ",", inner);
  hash = sha256_hex(line);
  return fmt::format("{},\"hash\":\"{}\"}}\n", line, hash);
}

struct Parsed {
  std::uint64_t sequence = 0;
  std::string_view previous;
  std::string_view hash;
  std::string_view covered;
};

bool parse_line(std::string_view line, Parsed& out) {
  constexpr std::string_view seq = "{\"seq\":";
  constexpr std::string_view prev = ",\"prev\":\"";
  constexpr std::string_view hash = ",\"hash\":\"";
  if (!line.starts_with(seq) || !line.ends_with("\"}")) return false;
  auto const [stop, error] =
      std::from_chars(line.data() + seq.size(), line.data() + line.size(), out.sequence);
  auto const rest = line.substr(static_cast<std::size_t>(stop - line.data()));
  if (error != std::errc() || !rest.starts_with(prev) || rest.size() < prev.size() + hash_digits)
    return false;
  out.previous = rest.substr(prev.size(), hash_digits);
  auto const tail = hash.size() + hash_digits + 2;
  if (line.size() < tail || line.substr(line.size() - tail, hash.size()) != hash) return false;
  out.hash = line.substr(line.size() - 2 - hash_digits, hash_digits);
  out.covered = line.substr(0, line.size() - tail);
  return true;
}

/// The last line of a file that is whole; sequence 0 when there is none.
Retired last_of(std::string const& path) {
  std::ifstream in(path, std::ios::binary);
  Retired out;
  std::string line;
  while (std::getline(in, line)) {
    Parsed parsed;
    if (!parse_line(line, parsed)) break;
    out = {parsed.sequence, std::string(parsed.hash), ""};
  }
  return out;
}

struct OldFile {
  std::string path;
  std::uint64_t bytes = 0;
  std::time_t changed_at = 0;
};

}  // namespace

struct Log::Impl {
  std::string directory;
  Limits limits;
  std::int64_t day = 0;  // since 1970, of the current file's beginning
  Retention kept;
  std::time_t retention_read_at = 0;
  os::Fd file;
  std::uint32_t number = 1;
  std::uint64_t bytes = 0;
  std::uint64_t sequence = 1;
  std::string last{genesis};
  std::function<base::Result<void>(Retired&)> sign;

  base::Result<void> open_file(bool fresh) {
    auto const path = directory + "/" + file_name(number);
    file = os::Fd(::open(
        path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC | O_CREAT | (fresh ? O_EXCL : 0), 0640));
    if (!file) return base::fail_errno("open the audit log", path);
    struct stat info{};
    if (::fstat(file.get(), &info) != 0) return base::fail_errno("look at the audit log", path);
    bytes = static_cast<std::uint64_t>(info.st_size);
    day = (bytes > 0 ? info.st_mtime : ::time(nullptr)) / seconds_of_day;
    return {};
  }

  /// As it was within the last minute: each line asks.
  Retention const& retention() {
    auto const now = ::time(nullptr);
    if (retention_read_at == 0 || now - retention_read_at >= 60 || now < retention_read_at) {
      kept = read_retention(directory).value_or(Retention{});
      retention_read_at = now;
    }
    return kept;
  }

  /// A file of its own for each day, where ages count: a file goes as a whole.
  bool is_over() {
    auto const most = limits.file_bytes_max > 0 ? limits.file_bytes_max : retention().file_bytes();
    if (bytes >= most) return true;
    bool const next_day = bytes > 0 && ::time(nullptr) / seconds_of_day != day;
    return next_day && retention().keep_days > 0;
  }

  /// All but the current one, oldest first.
  std::vector<OldFile> old_files() const {
    std::vector<OldFile> out;
    for (auto const& name : files_of(directory)) {
      if (name == file_name(number)) continue;
      OldFile one{directory + "/" + name, 0, 0};
      struct stat info{};
      if (::stat(one.path.c_str(), &info) != 0) continue;
      one.bytes = static_cast<std::uint64_t>(info.st_size);
      one.changed_at = info.st_mtime;
      out.push_back(std::move(one));
    }
    return out;
  }

  /// How many of them, from the oldest on.
  std::size_t count_too_many(std::vector<OldFile> const& files) const {
    if (limits.files_max > 0)
      return files.size() - std::min<std::size_t>(files.size(), limits.files_max - 1);
    // What cannot be read says nothing: no less is kept than by default.
    auto const keep = read_retention(directory).value_or(Retention{});
    std::uint64_t total = bytes;
    for (auto const& one : files)
      total += one.bytes;
    auto const oldest = ::time(nullptr) - static_cast<std::time_t>(keep.keep_days) * seconds_of_day;
    std::size_t count = 0;
    for (auto const& one : files) {
      bool const too_old = keep.keep_days > 0 && one.changed_at < oldest;
      if (!too_old && total <= keep.keep_bytes()) break;
      total -= one.bytes;
      ++count;
    }
    return count;
  }

  base::Result<void> write_line(std::string_view line) {
    auto const written = ::write(file.get(), line.data(), line.size());
    if (written == static_cast<ssize_t>(line.size())) {
      bytes += line.size();
      return {};
    }
    auto failed = base::fail_errno(written < 0 ? errno : ENOSPC, "write the audit log", directory);
    // Half a line must not stay: the next one would begin in its middle.
    if (written > 0 && ::ftruncate(file.get(), static_cast<off_t>(bytes)) != 0)
      return base::fail_errno("mend the audit log", directory);
    return failed;
  }

  /// Where the files before the latest one end, which may have been begun and never written to: a
  /// disk was full, or the power failed.
  base::Result<void> go_on_from(std::vector<std::string> const& earlier) {
    auto retired = read_retired(directory);
    if (!retired) return base::passing(retired);
    auto before = std::move(*retired);
    for (auto const& name : earlier)
      if (auto one = last_of(directory + "/" + name); one.through > before.through)
        before = std::move(one);
    if (before.through == 0) return {};
    sequence = before.through + 1;
    last = before.hash;
    return {};
  }

  base::Result<void> recover(std::string const& name) {
    std::ifstream in(directory + "/" + name, std::ios::binary);
    std::string line;
    std::uint64_t good = 0;
    bool torn = false;
    while (std::getline(in, line)) {
      Parsed parsed;
      if (in.eof() || !parse_line(line, parsed)) {
        torn = true;
        break;
      }
      sequence = parsed.sequence + 1;
      last = parsed.hash;
      good += line.size() + 1;
    }
    if (auto opened = open_file(false); !opened) return opened;
    if (!torn) return {};
    auto const lost = bytes - good;
    if (::ftruncate(file.get(), static_cast<off_t>(good)) != 0)
      return base::fail_errno("mend the audit log", directory);
    bytes = good;
    std::string hash;
    auto const note = make_line(
        sequence,
        last,
        fmt::format(R"({{"event":"gap","reason":"a torn write of {} bytes was found at start"}})",
                    lost),
        hash);
    if (auto written = write_line(note); !written) return written;
    ++sequence;
    last = hash;
    return {};
  }
};

Log::Log(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Log::~Log() = default;

base::Result<std::unique_ptr<Log>> Log::open(std::string directory, Limits limits) {
  auto impl = std::make_unique<Impl>();
  impl->directory = std::move(directory);
  impl->limits = limits;
  auto const names = files_of(impl->directory);
  base::Result<void> done;
  if (names.empty()) {
    done = impl->open_file(true);
  } else {
    auto const digits = names.back().substr(6, 8);
    std::from_chars(digits.data(), digits.data() + digits.size(), impl->number);
    // Only a file without a line needs to know, and reading all the others takes its time.
    if (last_of(impl->directory + "/" + names.back()).through == 0)
      done = impl->go_on_from({names.begin(), names.end() - 1});
    if (done) done = impl->recover(names.back());
  }
  if (!done) return base::passing(done);
  return std::unique_ptr<Log>(new Log(std::move(impl)));
}

base::Result<void> Log::append(std::string_view record) {
  if (record.size() < 2 || record.front() != '{' || record.back() != '}' ||
      record.find('\n') != std::string_view::npos) {
    return base::fail(base::Code::invalid_argument,
                      "an audit record is one JSON object on one line");
  }
  if (impl_->is_over()) {
    if (auto synced = sync(); !synced) return synced;
    ++impl_->number;
    if (auto opened = impl_->open_file(true); !opened) return opened;
    if (auto retired = retire(); !retired) return retired;
  }
  std::string hash;
  auto const line = make_line(impl_->sequence, impl_->last, record, hash);
  if (auto written = impl_->write_line(line); !written) return written;
  ++impl_->sequence;
  impl_->last = std::move(hash);
  return {};
}

base::Result<void> Log::retire() {
  auto const files = impl_->old_files();
  auto const count = impl_->count_too_many(files);
  for (std::size_t i = 0; i < count; ++i) {
    auto last = last_of(files[i].path);
    if (last.through > 0 && impl_->sign)
      if (auto signed_now = impl_->sign(last); !signed_now) return signed_now;
    // Noted first: a note about a line that is still there does no harm.
    if (last.through > 0)
      if (auto noted = write_retired(impl_->directory, last); !noted) return noted;
    if (::unlink(files[i].path.c_str()) != 0)
      return base::fail_errno("take an old audit file away", files[i].path);
  }
  return {};
}

void Log::sign_with(std::function<base::Result<void>(Retired&)> sign) {
  impl_->sign = std::move(sign);
}

base::Result<void> Log::sync() {
  if (::fdatasync(impl_->file.get()) != 0)
    return base::fail_errno("write the audit log to disk", impl_->directory);
  return {};
}

std::uint64_t Log::next_sequence() const noexcept {
  return impl_->sequence;
}

std::string const& Log::last_hash() const noexcept {
  return impl_->last;
}

namespace {

/// A log begins at the beginning, or where retention said that it took the rest away.
std::string why_not_first(Parsed const& first,
                          std::uint64_t& retired_through,
                          Retired const& retired) {
  if (first.sequence == 1)
    return first.previous == genesis ? "" : "the first line follows one that never was";
  // A note about lines that are still there: it was written before they went.
  if (retired.through >= first.sequence) return {};
  retired_through = retired.through;
  bool const next = retired.through + 1 == first.sequence && retired.hash == first.previous;
  return next ? "" : "lines before this one are missing, and retention did not take them";
}

}  // namespace

base::Result<Verdict> verify(std::string const& directory,
                             std::function<void(std::string_view)> const& each) {
  Verdict verdict;
  auto const names = files_of(directory);
  if (names.empty()) return base::fail(base::Code::not_found, "there is no audit log", directory);
  auto retired = read_retired(directory);
  if (!retired) return base::passing(retired);
  std::string last;
  std::uint64_t expected = 0;
  for (auto const& name : names) {
    std::ifstream in(directory + "/" + name, std::ios::binary);
    ++verdict.files;
    std::string line;
    for (std::uint64_t number = 1; std::getline(in, line); ++number) {
      auto const broken = [&](std::string_view what) {
        verdict.problem = fmt::format("{} line {}: {}", name, number, what);
        verdict.last_hash = last;
        return verdict;
      };
      Parsed parsed;
      if (!parse_line(line, parsed)) return broken("not a line of this log");
      if (sha256_hex(parsed.covered) != parsed.hash) return broken("the line was changed");
      if (last.empty()) {
        verdict.first_sequence = parsed.sequence;
        if (auto const why = why_not_first(parsed, verdict.retired_through, *retired); !why.empty())
          return broken(why);
      } else if (parsed.previous != last || parsed.sequence != expected) {
        return broken("lines are missing or were put in before this one");
      }
      last = parsed.hash;
      expected = parsed.sequence + 1;
      verdict.last_sequence = parsed.sequence;
      ++verdict.lines;
      if (each) each(line);
    }
  }
  verdict.last_hash = last;
  return verdict;
}

base::Result<Verdict> verify_since(std::string const& directory, Checkpoint const& checkpoint) {
  bool found = false;
  bool same = false;
  auto verdict = verify(directory, [&](std::string_view line) {
    Parsed parsed;
    if (found || !parse_line(line, parsed) || parsed.sequence != checkpoint.sequence) return;
    found = true;
    same = parsed.hash == checkpoint.hash;
  });
  if (!verdict || !verdict->problem.empty()) return verdict;
  auto const number = checkpoint.sequence;
  if (found && !same)
    verdict->problem = fmt::format("line number {} is another one than at the checkpoint", number);
  else if (!found && verdict->last_sequence < number)
    verdict->problem = fmt::format(
        "it ends with number {}; at the checkpoint it went to {}", verdict->last_sequence, number);
  else if (!found && verdict->retired_through < number)
    verdict->problem = fmt::format("line number {} is gone, and retention did not take it", number);
  return verdict;
}

}  // namespace audit
