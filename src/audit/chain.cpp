#include "audit/chain.hpp"

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

}  // namespace

struct Log::Impl {
  std::string directory;
  Limits limits;
  os::Fd file;
  std::uint32_t number = 1;
  std::uint64_t bytes = 0;
  std::uint64_t sequence = 1;
  std::string last{genesis};

  base::Result<void> open_file(bool fresh) {
    auto const path = directory + "/" + file_name(number);
    file = os::Fd(::open(
        path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC | O_CREAT | (fresh ? O_EXCL : 0), 0640));
    if (!file) return base::fail_errno("open the audit log", path);
    struct stat info{};
    if (::fstat(file.get(), &info) != 0) return base::fail_errno("look at the audit log", path);
    bytes = static_cast<std::uint64_t>(info.st_size);
    return {};
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
    done = impl->recover(names.back());
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
  if (impl_->bytes >= impl_->limits.file_bytes_max) {
    if (auto synced = sync(); !synced) return synced;
    ++impl_->number;
    if (auto opened = impl_->open_file(true); !opened) return opened;
    auto const names = files_of(impl_->directory);
    for (std::size_t i = 0; i + impl_->limits.files_max < names.size(); ++i)
      ::unlink((impl_->directory + "/" + names[i]).c_str());
  }
  std::string hash;
  auto const line = make_line(impl_->sequence, impl_->last, record, hash);
  if (auto written = impl_->write_line(line); !written) return written;
  ++impl_->sequence;
  impl_->last = std::move(hash);
  return {};
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

base::Result<Verdict> verify(std::string const& directory,
                             std::function<void(std::string_view)> const& each) {
  Verdict verdict;
  auto const names = files_of(directory);
  if (names.empty()) return base::fail(base::Code::not_found, "there is no audit log", directory);
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
      } else if (parsed.previous != last || parsed.sequence != expected) {
        return broken("lines are missing or were put in before this one");
      }
      last = parsed.hash;
      expected = parsed.sequence + 1;
      ++verdict.lines;
      if (each) each(line);
    }
  }
  // The oldest files may have been retired, but a log that claims to begin at the beginning must do
  // so.
  verdict.last_hash = last;
  return verdict;
}

}  // namespace audit
