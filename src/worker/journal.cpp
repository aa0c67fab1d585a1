#include "worker/journal.hpp"

#include "base/id.hpp"
#include "os/fd.hpp"

#include <sys/stat.h>

#include <array>
#include <atomic>

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

namespace worker {
namespace {

constexpr std::size_t entry_bytes_max = 16 << 20;  // the policy of thousands of rules is in it
constexpr std::string_view half_written = ".tmp";

/// Each writer has a file of its own, also when two write one entry: the later name stands, and
/// nobody takes away or mixes into what another is writing.
std::string temporary_of(std::string const& path) {
  static std::atomic<std::uint64_t> count{0};
  return fmt::format("{}.{}{}", path, ++count, half_written);
}

base::Result<void> write_whole(os::Fd const& file, std::string_view text) {
  while (!text.empty()) {
    auto const done = ::write(file.get(), text.data(), text.size());
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return base::fail_errno("write the journal");
    text.remove_prefix(static_cast<std::size_t>(done));
  }
  return {};
}

base::Result<std::string> read_whole(std::string const& path) {
  os::Fd const file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!file) return base::fail_errno("open a journal entry", path);
  std::string text;
  std::array<char, 16 * 1024> buffer{};
  for (;;) {
    auto const got = ::read(file.get(), buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return base::fail_errno("read a journal entry", path);
    if (got == 0) return text;
    text.append(buffer.data(), static_cast<std::size_t>(got));
    if (text.size() > entry_bytes_max)
      return base::fail(base::Code::too_large, "a journal entry is too long", path);
  }
}

}  // namespace

std::string JournalEntry::check() const {
  constexpr std::array known{"starting",
                             "running",
                             "ending",
                             "ended",
                             "warm",
                             "paused",
                             "suspending",
                             "suspended",
                             "restoring"};
  if (std::ranges::find(known, phase) == known.end()) return "phase: unknown";
  if (!base::SandboxId::parse(sandbox)) return "sandbox: not an id";
  if (epoch == 0) return "epoch: at least 1";
  return {};
}

base::Result<void> Journal::open() const {
  if (::mkdir(dir_.c_str(), 0700) != 0 && errno != EEXIST)
    return base::fail_errno("make the journal's directory", dir_);
  DIR* const dir = ::opendir(dir_.c_str());
  if (!dir) return base::fail_errno("read the journal's directory", dir_);
  while (auto const* item =
             ::readdir(dir)) {  // NOLINT(concurrency-mt-unsafe): each DIR has one reader
    std::string_view const name = item->d_name;
    if (name.ends_with(half_written)) ::unlinkat(::dirfd(dir), item->d_name, 0);
  }
  ::closedir(dir);
  return {};
}

base::Result<void> Journal::write(JournalEntry const& entry) const {
  return write(entry, false);
}

base::Result<void> Journal::write_durably(JournalEntry const& entry) const {
  auto written = write(entry, true);
  if (!written) return written;
  os::Fd const dir(::open(dir_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!dir || ::fsync(dir.get()) != 0) return base::fail_errno("sync the journal", dir_);
  return {};
}

base::Result<void> Journal::write(JournalEntry const& entry, bool sync) const {
  auto const path = fmt::format("{}/{}.json", dir_, entry.sandbox);
  auto const temporary = temporary_of(path);
  // What a killed worker left goes when the next one opens the journal.
  os::Fd file(
      ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file) return base::fail_errno("open the journal", temporary);
  auto step = write_whole(file, wire::encode_text(entry));
  if (step && sync && ::fsync(file.get()) != 0)
    step = base::fail_errno("sync the journal", temporary);
  if (step && ::rename(temporary.c_str(), path.c_str()) != 0)
    step = base::fail_errno("replace the journal's entry", path);
  if (!step) ::unlink(temporary.c_str());
  return step;
}

base::Result<void> Journal::remove(std::string const& sandbox) const {
  auto const path = fmt::format("{}/{}.json", dir_, sandbox);
  if (::unlink(path.c_str()) != 0 && errno != ENOENT)
    return base::fail_errno("remove a journal entry", path);
  return {};
}

base::Result<Journal::Loaded> Journal::load() const {
  DIR* const dir = ::opendir(dir_.c_str());
  if (!dir) return base::fail_errno("read the journal's directory", dir_);
  std::vector<std::string> names;
  errno = 0;
  while (auto const* item =
             ::readdir(dir)) {  // NOLINT(concurrency-mt-unsafe): each DIR has one reader
    if (std::string_view(item->d_name).ends_with(".json")) names.emplace_back(item->d_name);
  }
  int const problem = errno;
  ::closedir(dir);
  if (problem != 0) return base::fail_errno(problem, "read the journal's directory", dir_);
  Loaded loaded;
  for (auto const& name : names) {
    auto const path = dir_ + "/" + name;
    auto const text = read_whole(path);
    if (!text && text.error().code() != base::Code::too_large) return std::unexpected(text.error());
    // Fields of a newer worker are not an error: going back one version must find its machines.
    auto entry =
        text ? wire::decode_text<JournalEntry>(*text, wire::UnknownKeys::ignore, entry_bytes_max)
             : base::Result<JournalEntry>();
    if (entry && entry->sandbox + ".json" == name) {
      loaded.entries.push_back(std::move(*entry));
    } else {
      ::rename(path.c_str(), (path + ".broken").c_str());
      loaded.broken.push_back(name);
    }
  }
  return loaded;
}

}  // namespace worker
