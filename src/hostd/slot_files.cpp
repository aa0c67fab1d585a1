#include "hostd/slot_files.hpp"

#include "base/id.hpp"
#include "os/text_file.hpp"

#include <sys/stat.h>

#include <cerrno>
#include <charconv>
#include <cstdio>

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

namespace hostd {
namespace {

constexpr char const* file_names[] = {"/record",
                                      "/record.new",
                                      "/spent",
                                      "/spent.new",
                                      "/qmp.sock",
                                      "/console.sock",
                                      "/console.fifo",
                                      "/log.fifo",
                                      "/gateway.sock"};

base::Result<void> remove_file(std::string const& path) {
  if (::unlink(path.c_str()) != 0 && errno != ENOENT)
    return base::fail_errno("remove a file of a slot", path);
  return {};
}

}  // namespace

std::optional<std::uint32_t> parse_slot(std::string_view text) {
  std::uint32_t value = 0;
  auto const [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  bool const whole = error == std::errc() && end == text.data() + text.size();
  if (!whole || value > 4095 || std::to_string(value) != text) return std::nullopt;
  return value;
}

std::vector<std::uint32_t> numbered_entries(std::string const& directory) {
  std::vector<std::uint32_t> numbers;
  std::unique_ptr<DIR, int (*)(DIR*)> const entries(::opendir(directory.c_str()), ::closedir);
  if (!entries) return numbers;
  while (auto const* entry = ::readdir(entries.get())) {  // NOLINT(concurrency-mt-unsafe)
    if (auto const number = parse_slot(entry->d_name)) numbers.push_back(*number);
  }
  return numbers;
}

SlotFiles::SlotFiles(std::string const& directory, std::uint32_t slot)
    : netns_(fmt::format("{}/netns/{}", directory, slot)),
      directory_(fmt::format("{}/slots/{}", directory, slot)) {}

bool SlotFiles::exists() const {
  return ::access(directory_.c_str(), F_OK) == 0;
}

base::Result<void> SlotFiles::make() const {
  if (::mkdir(directory_.c_str(), 0700) != 0)
    return base::fail_errno("make the directory of a slot", directory_);
  return {};
}

std::optional<SlotRecord> SlotFiles::record() const {
  auto const text = os::read_text(directory_ + "/record", 256);
  if (!text) return std::nullopt;
  // "<sandbox> <epoch>\n"
  auto const space = text->find(' ');
  if (space == std::string::npos || !text->ends_with('\n')) return std::nullopt;
  auto const sandbox = base::SandboxId::parse(std::string_view(*text).substr(0, space));
  if (!sandbox) return std::nullopt;
  SlotRecord record{.sandbox = sandbox->str()};
  auto const* const last = text->data() + text->size() - 1;
  auto const [end, error] = std::from_chars(text->data() + space + 1, last, record.epoch);
  if (error != std::errc() || end != last) return std::nullopt;
  return record;
}

base::Result<void> SlotFiles::write_record(SlotRecord const& record) const {
  return os::write_text_durably(directory_ + "/record",
                                fmt::format("{} {}\n", record.sandbox, record.epoch));
}

std::optional<SlotEnd> SlotFiles::spent() const {
  auto const text = os::read_text(directory_ + "/spent", 64);
  if (!text) return std::nullopt;
  SlotEnd end;
  int out_of_memory = 0;
  // Written by us, durably; if it cannot be read the end is unknown, and the slot is spent all the
  // same.
  if (std::sscanf(text->c_str(), "%d %d", &end.wait_status, &out_of_memory) != 2)
    return SlotEnd{};  // NOLINT(cert-err34-c)
  end.out_of_memory = out_of_memory != 0;
  return end;
}

base::Result<void> SlotFiles::mark_spent(SlotEnd const& end) const {
  return os::write_text_durably(directory_ + "/spent",
                                fmt::format("{} {}\n", end.wait_status, end.out_of_memory ? 1 : 0));
}

base::Result<void> SlotFiles::remove_record() const {
  return remove_file(directory_ + "/record");
}

void SlotFiles::remove_sockets() const {
  ::unlink(qmp_socket().c_str());
  ::unlink(console_socket().c_str());
  ::unlink(console_fifo().c_str());
  ::unlink(log_fifo().c_str());
}

void SlotFiles::remove_leftovers() const {
  ::unlink((directory_ + "/record.new").c_str());
  ::unlink((directory_ + "/spent.new").c_str());
}

base::Result<void> SlotFiles::remove() const {
  for (char const* name : file_names) {
    auto removed = remove_file(directory_ + name);
    if (!removed) return removed;
  }
  if (::rmdir(directory_.c_str()) != 0 && errno != ENOENT)
    return base::fail_errno("remove the directory of a slot", directory_);
  return {};
}

}  // namespace hostd
