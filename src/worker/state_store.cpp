#include "worker/state_store.hpp"

#include "async/beside.hpp"
#include "base/log.hpp"
#include "os/text_file.hpp"
#include "worker/memory_pages.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include <fcntl.h>
#include <unistd.h>

namespace worker {

namespace fs = std::filesystem;

/// `manifest.json`.
struct SealedMachine {
  std::string manifest;
  std::string mac;

  static bool required(std::string_view) { return true; }
};
BOOST_DESCRIBE_STRUCT(SealedMachine, (), (manifest, mac))

namespace {

constexpr std::size_t manifest_bytes_max = 16 << 20;  // policy and credentials are in it
constexpr std::size_t state_bytes_max = 16 << 20;
constexpr std::string_view removing = ".gone-";

std::unexpected<base::Error> unusable(std::string what) {
  return base::fail(base::Code::internal, "the saved state cannot be used: " + std::move(what));
}

/// A full pool is the one failure that a caller can do something about.
std::unexpected<base::Error> write_failure(char const* step, std::string detail = {}) {
  if (errno == ENOSPC || errno == EDQUOT)
    return base::fail(base::Code::exhausted, "the host's pool has no room for it", step);
  return base::fail_errno(step, std::move(detail));
}

base::Result<os::Fd> open_file(std::string const& path, int flags) {
  os::Fd file(::open(path.c_str(), flags | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file) return base::fail_errno("open a saved machine's file", path);
  return file;
}

base::Result<void> sync_path(std::string const& path) {
  auto const file = open_file(path, O_RDONLY);
  if (!file) return std::unexpected(file.error());
  if (::fsync(file->get()) != 0) return write_failure("sync a saved machine", path);
  return {};
}

struct Mark {
  std::uint64_t bytes = 0;
  std::int64_t changed_ns = 0;

  friend bool operator==(Mark const&, Mark const&) = default;
};

base::Result<Mark> mark_of(os::FdRef file) {
  struct stat about{};
  if (::fstat(file.get(), &about) != 0) return base::fail_errno("look at a saved machine's file");
  if (!S_ISREG(about.st_mode)) return unusable("one of its files is none");
  return Mark{static_cast<std::uint64_t>(about.st_size),
              about.st_mtim.tv_sec * 1'000'000'000 + about.st_mtim.tv_nsec};
}

base::Result<Mark> mark_of(std::string const& path) {
  auto const file = open_file(path, O_RDONLY);
  if (!file) return std::unexpected(file.error());
  return mark_of(os::FdRef(*file));
}

base::Result<void> write_text(std::string const& path, std::string_view text) {
  auto const file = open_file(path, O_WRONLY | O_CREAT | O_EXCL);
  if (!file) return std::unexpected(file.error());
  while (!text.empty()) {
    auto const done = ::write(file->get(), text.data(), text.size());
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return write_failure("write a saved machine", path);
    text.remove_prefix(static_cast<std::size_t>(done));
  }
  return {};
}

void remove_tree(std::string const& path) {
  std::error_code failed;
  fs::remove_all(path, failed);
  if (failed)
    base::log::warn("saved_machine_not_removed", {{"dir", path}, {"what", failed.message()}});
}

/// A file, opened once: what is hashed is what is used.
base::Result<os::Fd> open_marked(std::string const& path, Mark const& mark, char const* what) {
  auto file = open_file(path, O_RDONLY);
  if (!file) return unusable(fmt::format("its {} is missing", what));
  auto const now = mark_of(os::FdRef(*file));
  if (!now) return std::unexpected(now.error());
  if (*now != mark) return unusable(fmt::format("its {} was changed", what));
  return file;
}

base::Result<os::Fd> open_hashed(std::string const& path,
                                 std::uint64_t bytes,
                                 std::string const& sha256,
                                 char const* what) {
  auto file = open_file(path, O_RDONLY);
  if (!file) return unusable(fmt::format("its {} is missing", what));
  auto const now = mark_of(os::FdRef(*file));
  if (!now) return std::unexpected(now.error());
  if (now->bytes != bytes) return unusable(fmt::format("its {} is cut off", what));
  auto const hash = sha256_of_file(fmt::format("/proc/self/fd/{}", file->get()));
  if (!hash) return std::unexpected(hash.error());
  if (*hash != sha256) return unusable(fmt::format("its {} is damaged", what));
  return file;
}

base::Result<std::string> read_all(os::Fd const& file, std::uint64_t bytes) {
  if (bytes > state_bytes_max) return unusable("its device state is too long");
  std::string text(bytes, '\0');
  if (::pread(file.get(), text.data(), text.size(), 0) != static_cast<ssize_t>(text.size()))
    return base::fail_errno("read a saved machine's state");
  return text;
}

/// Nothing but holes, and no name.
base::Result<os::Fd> empty_memory(std::string const& dir, std::uint32_t memory_mib) {
  os::Fd file(::open(dir.c_str(), O_RDWR | O_TMPFILE | O_CLOEXEC, 0600));
  if (!file || ::ftruncate(file.get(), off_t{memory_mib} << 20) != 0)
    return base::fail_errno("make a file for the machine's memory", dir);
  return file;
}

}  // namespace

bool is_snapshot_name(std::string_view name) noexcept {
  auto const plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_';
  };
  return !name.empty() && name.size() <= 64 && std::ranges::all_of(name, plain) &&
         !name.starts_with("base-") && !name.starts_with("aside-");
}

wire::SnapshotReport report_of(SavedMachine const& saved) {
  wire::SnapshotReport out;
  out.snapshot = saved.name;
  out.build = saved.build;
  out.vcpus = saved.vcpus;
  out.memory_mib = saved.memory_mib;
  out.disk_mib = saved.disk_mib;
  out.bytes = saved.pages_bytes + saved.state_bytes;
  out.paused_ms = saved.paused_ms;
  out.sandbox = saved.entry.sandbox;
  return out;
}

base::Result<void> StateStore::open() {
  if (::mkdir(dir_.c_str(), 0700) != 0 && errno != EEXIST)
    return base::fail_errno("make the directory of saved machines", dir_);
  auto key = SealKey::open(key_file_);
  if (!key) return base::passing(key, "open the directory of saved machines");
  key_ = std::move(*key);
  std::error_code failed;
  for (auto const& item : fs::directory_iterator(dir_, failed)) {
    auto const name = item.path().filename().string();
    if (name.starts_with(".taking-") || name.starts_with(removing))
      remove_tree(item.path().string());
  }
  if (failed)
    return base::fail(
        base::Code::internal, "read the directory of saved machines", failed.message());
  return {};
}

base::Result<std::string> StateStore::begin(std::string const& name) const {
  auto dir = gathering(name);
  remove_tree(dir);
  if (::mkdir(dir.c_str(), 0700) != 0)
    return write_failure("make a saved machine's directory", dir);
  return dir;
}

base::Result<os::Fd> StateStore::create(std::string const& gathering, char const* file) {
  return open_file(gathering + "/" + file, O_RDWR | O_CREAT | O_EXCL);
}

base::Result<void> StateStore::sync(std::string const& gathering, char const* file) {
  return sync_path(gathering + "/" + file);
}

base::Result<void> StateStore::keep(SavedMachine saved) const {
  auto const from = gathering(saved.name);
  auto const to = path(saved.name);
  auto const disk = mark_of(from + "/disk.img");
  if (!disk) return std::unexpected(disk.error());
  saved.disk_bytes = disk->bytes;
  saved.disk_changed_ns = disk->changed_ns;
  bool const on_base = fs::exists(from + "/base");
  if (on_base) {
    auto const memory = mark_of(from + "/base");
    if (!memory) return std::unexpected(memory.error());
    saved.base_bytes = memory->bytes;
    saved.base_changed_ns = memory->changed_ns;
  }
  // The pages are what is waited for: the rest is done meanwhile.
  auto writing = async::beside([pages = from + "/pages"] { return sync_path(pages); });
  auto step = seal(std::move(saved), from);
  for (char const* file : {"/state", "/disk.img", "/manifest.json"}) {
    if (step) step = sync_path(from + file);
  }
  auto const written = writing.get();
  if (step) step = written;
  if (step) step = sync_path(from);
  if (!step) return step;
  // Fails where one is, because that is a directory with something in it.
  if (::rename(from.c_str(), to.c_str()) != 0) {
    if (errno == ENOTEMPTY || errno == EEXIST)
      return base::fail(base::Code::conflict, "there is a saved machine of this name");
    return write_failure("give a saved machine its name", from);
  }
  return sync_path(dir_);
}

base::Result<void> StateStore::seal(SavedMachine saved, std::string const& gathering) const {
  if (saved.pages_sha256.empty()) {
    auto pages = sha256_of_file(gathering + "/pages");
    if (!pages) return std::unexpected(pages.error());
    saved.pages_sha256 = std::move(*pages);
  }
  SealedMachine sealed;
  sealed.manifest = wire::encode_text(saved);
  sealed.mac = key_->mac_of(sealed.manifest);
  return write_text(gathering + "/manifest.json", wire::encode_text(sealed));
}

void StateStore::discard(std::string const& name) const {
  remove_tree(gathering(name));
}

base::Result<SavedMachine> StateStore::look(std::string const& name) const {
  auto const file = path(name) + "/manifest.json";
  if (!fs::exists(path(name)))
    return base::fail(base::Code::not_found, "there is no saved machine of this name");
  auto const text = os::read_text(file, manifest_bytes_max);
  if (!text) return unusable("its manifest is missing");
  auto const sealed =
      wire::decode_text<SealedMachine>(*text, wire::UnknownKeys::reject, manifest_bytes_max);
  if (!sealed) return unusable("its manifest is damaged");
  if (!key_->fits(sealed->manifest, sealed->mac))
    return unusable("its manifest was not written by this host, or was changed");
  auto saved = wire::decode_text<SavedMachine>(
      sealed->manifest, wire::UnknownKeys::reject, manifest_bytes_max);
  if (!saved || saved->format != 1) return unusable("it is of another version");
  if (saved->name != name) return unusable("it is another one's");
  return saved;
}

base::Result<LoadedMachine> StateStore::load(std::string const& name,
                                             std::string const& identity) const {
  auto saved = look(name);
  if (!saved) return std::unexpected(std::move(saved.error()));
  if (saved->identity != identity) {
    return unusable(
        "it was made with another processor, virtual machine monitor or guest kernel than this "
        "host has now");
  }
  LoadedMachine out;
  auto const dir = path(name);
  auto state = open_hashed(dir + "/state", saved->state_bytes, saved->state_sha256, "device state");
  if (!state) return std::unexpected(std::move(state.error()));
  auto text = read_all(*state, saved->state_bytes);
  if (!text) return std::unexpected(std::move(text.error()));
  auto pages = open_hashed(dir + "/pages", saved->pages_bytes, saved->pages_sha256, "memory");
  if (!pages) return std::unexpected(std::move(pages.error()));
  auto sound = check_changed_pages(*pages, saved->memory_mib);
  if (!sound) return std::unexpected(std::move(sound.error()));
  auto disk =
      open_marked(dir + "/disk.img", Mark{saved->disk_bytes, saved->disk_changed_ns}, "disk");
  if (!disk) return std::unexpected(std::move(disk.error()));
  auto memory = saved->base_bytes == 0
                    ? empty_memory(dir_, saved->memory_mib)
                    : open_marked(dir + "/base",
                                  Mark{saved->base_bytes, saved->base_changed_ns},
                                  "template's memory");
  if (!memory) return std::unexpected(std::move(memory.error()));
  out.saved = std::move(*saved);
  out.memory = std::move(*memory);
  out.pages = std::move(*pages);
  out.disk = std::move(*disk);
  out.state = std::move(*text);
  return out;
}

base::Result<void> StateStore::remove(std::string const& name) const {
  auto const away = dir_ + "/" + std::string(removing) + name;
  remove_tree(away);
  if (::rename(path(name).c_str(), away.c_str()) != 0) {
    if (errno == ENOENT) return {};
    return base::fail_errno("remove a saved machine", path(name));
  }
  auto synced = sync_path(dir_);
  remove_tree(away);
  return synced;
}

std::vector<std::string> StateStore::names() const {
  std::vector<std::string> found;
  std::error_code failed;
  for (auto const& item : fs::directory_iterator(dir_, failed)) {
    auto name = item.path().filename().string();
    if (is_snapshot_name(name)) found.push_back(std::move(name));
  }
  std::ranges::sort(found);
  return found;
}

}  // namespace worker
