#include "worker/base_snapshot.hpp"

#include "base/fault.hpp"
#include "base/log.hpp"
#include "os/text_file.hpp"
#include "vmm/qemu_command.hpp"

#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include <fcntl.h>
#include <unistd.h>

namespace worker {

namespace fs = std::filesystem;

/// What is known of a snapshot; its text is what the MAC covers.
struct BaseManifest {
  std::uint32_t format = 1;
  std::string key;
  std::string identity;
  std::string build;
  std::string accelerator;
  std::uint32_t vcpus = 0;
  std::uint32_t memory_mib = 0;
  std::uint32_t disk_mib = 0;
  std::uint64_t tsc_khz = 0;
  std::string init_key;
  std::uint64_t state_bytes = 0;
  std::string state_sha256;
  std::string memory_sha256;
  std::uint64_t disk_bytes = 0;
  std::int64_t disk_changed_ns = 0;

  static bool required(std::string_view) { return true; }
};
BOOST_DESCRIBE_STRUCT(BaseManifest,
                      (),
                      (format,
                       key,
                       identity,
                       build,
                       accelerator,
                       vcpus,
                       memory_mib,
                       disk_mib,
                       tsc_khz,
                       init_key,
                       state_bytes,
                       state_sha256,
                       memory_sha256,
                       disk_bytes,
                       disk_changed_ns))

/// `manifest.json`.
struct SealedManifest {
  std::string manifest;
  std::string mac;

  static bool required(std::string_view) { return true; }
};
BOOST_DESCRIBE_STRUCT(SealedManifest, (), (manifest, mac))

namespace {

constexpr std::uint64_t mib = 1 << 20;
constexpr std::size_t manifest_bytes_max = 16 * 1024;
constexpr std::size_t state_bytes_max = 4 << 20;
constexpr std::string_view kept = "base-";
constexpr std::string_view half_made = ".making-";
constexpr std::string_view aside = "aside-";

std::unexpected<base::Error> unusable(std::string what) {
  return base::fail(base::Code::internal, "the base snapshot cannot be used: " + std::move(what));
}

base::Result<FileMark> mark_of(os::FdRef file) {
  struct stat about{};
  if (::fstat(file.get(), &about) != 0) return base::fail_errno("look at a snapshot's file");
  return FileMark{static_cast<std::uint64_t>(about.st_size),
                  about.st_ino,
                  about.st_mtim.tv_sec * 1'000'000'000 + about.st_mtim.tv_nsec};
}

base::Result<os::Fd> open_file(std::string const& path, int flags) {
  os::Fd file(::open(path.c_str(), flags | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file) return base::fail_errno("open a snapshot's file", path);
  return file;
}

base::Result<void> sync_path(std::string const& path) {
  auto const file = open_file(path, O_RDONLY);
  if (!file) return std::unexpected(file.error());
  if (::fsync(file->get()) != 0) return base::fail_errno("sync a snapshot's file", path);
  return {};
}

void remove_all(std::string const& dir) {
  std::error_code failed;
  fs::remove_all(dir, failed);
  if (failed) base::log::warn("snapshot_not_removed", {{"dir", dir}, {"what", failed.message()}});
}

/// What the guest sees of the processor beside its model's name: in emulation it is the emulator's.
std::string processor() {
  std::ifstream file("/proc/cpuinfo");
  std::string out;
  for (std::string line; std::getline(file, line) && !line.empty();) {
    for (auto const* name :
         {"vendor_id", "cpu family", "model\t", "stepping", "microcode", "flags"})
      if (line.starts_with(name)) out += line + "\n";
  }
  return out;
}

base::Result<BaseManifest> read_manifest(std::string const& dir, SealKey const& key) {
  auto const text = os::read_text(dir + "/manifest.json", manifest_bytes_max);
  if (!text) return std::unexpected(text.error());
  auto const sealed =
      wire::decode_text<SealedManifest>(*text, wire::UnknownKeys::reject, manifest_bytes_max);
  if (!sealed) return unusable("its manifest is damaged");
  if (!key.fits(sealed->manifest, sealed->mac))
    return unusable("its manifest was not written by this host");
  auto manifest = wire::decode_text<BaseManifest>(
      sealed->manifest, wire::UnknownKeys::reject, manifest_bytes_max);
  if (!manifest || manifest->format != 1) return unusable("its manifest is of another version");
  return manifest;
}

MachineShape shape_of(BaseManifest const& manifest) {
  return {manifest.build,
          manifest.accelerator == "kvm" ? vmm::Accelerator::kvm : vmm::Accelerator::tcg,
          manifest.vcpus,
          manifest.memory_mib,
          manifest.disk_mib};
}

}  // namespace

base::Result<std::string> identity_of(std::string const& guest_fingerprint,
                                      std::string const& vmm_program) {
  auto program = sha256_of_file(vmm_program);
  if (!program) return base::passing(program, "look at the virtual machine monitor");
  std::string all = "2\n" + guest_fingerprint + "\n" + *program + "\n" + processor();
  for (bool const kvm : {false, true}) {
    vmm::QemuSpec spec;
    spec.kvm = kvm;
    spec.memory = vmm::QemuMemory::restored;
    for (auto const& word : vmm::qemu_command(spec))
      all += word + "\n";
  }
  return sha256_of(all);
}

base::Result<void> BaseSnapshot::check_unchanged() const {
  auto const memory_now = mark_of(memory);
  auto const disk_now = mark_of(disk);
  if (!memory_now || *memory_now != memory_mark) return unusable("its memory file was changed");
  if (!disk_now || *disk_now != disk_mark) return unusable("its disk was changed");
  return {};
}

base::Result<void> BaseFiles::open(std::string const& key_file, std::string identity) {
  if (::mkdir(dir_.c_str(), 0700) != 0 && errno != EEXIST)
    return base::fail_errno("make the directory of snapshots", dir_);
  auto key = SealKey::open(key_file);
  if (!key) return base::passing(key, "open the directory of snapshots");
  key_ = std::move(*key);
  identity_ = std::move(identity);
  std::error_code failed;
  std::vector<std::string> useless;
  for (auto const& item : fs::directory_iterator(dir_, failed)) {
    auto const name = item.path().filename().string();
    if (name.starts_with(half_made)) useless.push_back(item.path());
    if (!name.starts_with(kept)) continue;
    auto const manifest = read_manifest(item.path(), *key_);
    // One that cannot be read is named when somebody wants it.
    if (manifest && manifest->identity != identity_) useless.push_back(item.path());
  }
  if (failed) return base::fail(base::Code::internal, "the snapshots cannot be read", dir_);
  for (auto const& dir : useless) {
    base::log::info("snapshot_removed", {{"dir", dir}});
    remove_all(dir);
  }
  return {};
}

std::string BaseFiles::key_of(MachineShape const& shape) const {
  return sha256_of(fmt::format("{}\n{}\n{}\n{}\n{}\n{}",
                               identity_,
                               shape.build,
                               vmm::name_of(shape.accelerator),
                               shape.vcpus,
                               shape.memory_mib,
                               shape.disk_mib))
      .substr(0, 32);
}

base::Result<BaseRecording> BaseFiles::begin(MachineShape const& shape) const {
  BaseRecording out;
  out.shape = shape;
  out.dir = fmt::format("{}/{}{}", dir_, half_made, key_of(shape));
  remove_all(out.dir);
  if (::mkdir(out.dir.c_str(), 0700) != 0)
    return base::fail_errno("make a snapshot's directory", out.dir);
  auto memory = open_file(out.dir + "/memory", O_RDWR | O_CREAT | O_EXCL);
  if (!memory) return std::unexpected(memory.error());
  if (::ftruncate(memory->get(), static_cast<off_t>(shape.memory_mib * mib)) != 0)
    return base::fail_errno("size a snapshot's memory", out.dir);
  auto state = open_file(out.dir + "/state", O_RDWR | O_CREAT | O_EXCL);
  if (!state) return std::unexpected(state.error());
  out.memory = std::move(*memory);
  out.state = std::move(*state);
  return out;
}

void BaseFiles::discard(BaseRecording const& recording) const {
  remove_all(recording.dir);
}

base::Result<void> BaseFiles::keep(BaseRecording const& recording, std::uint64_t tsc_khz) const {
  auto const& dir = recording.dir;
  for (auto const* name : {"/memory", "/state", "/disk.img"}) {
    if (auto synced = sync_path(dir + name); !synced) return synced;
    ::chmod((dir + name).c_str(), 0400);
  }
  auto state = os::read_text(dir + "/state", state_bytes_max);
  if (!state) return base::passing(state, "read the captured state");
  auto disk = open_file(dir + "/disk.img", O_RDONLY);
  if (!disk) return std::unexpected(disk.error());
  auto const disk_mark = mark_of(*disk);
  auto memory = sha256_of_sparse(recording.memory);
  if (!memory || !disk_mark) return base::fail(base::Code::internal, "the recording is unreadable");
  auto const& shape = recording.shape;
  BaseManifest manifest;
  manifest.key = key_of(shape);
  manifest.identity = identity_;
  manifest.build = shape.build;
  manifest.accelerator = vmm::name_of(shape.accelerator);
  manifest.vcpus = shape.vcpus;
  manifest.memory_mib = shape.memory_mib;
  manifest.disk_mib = shape.disk_mib;
  manifest.tsc_khz = tsc_khz;
  manifest.init_key = recording.init_key;
  manifest.state_bytes = state->size();
  manifest.state_sha256 = sha256_of(*state);
  manifest.memory_sha256 = std::move(*memory);
  manifest.disk_bytes = disk_mark->bytes;
  manifest.disk_changed_ns = disk_mark->changed_ns;
  SealedManifest sealed{wire::encode_text(manifest), {}};
  sealed.mac = key_->mac_of(sealed.manifest);
  auto written = os::write_text_durably(dir + "/manifest.json", wire::encode_text(sealed));
  if (!written) return base::passing(written, "write the snapshot's manifest");
  if (SPACE_FAULT("worker.base.sealed")) return base::fail(base::Code::internal, "told to fail");
  auto const place = fmt::format("{}/{}{}", dir_, kept, manifest.key);
  remove_all(place);
  if (::rename(dir.c_str(), place.c_str()) != 0)
    return base::fail_errno("put the snapshot in its place", place);
  return sync_path(dir_);
}

base::Result<std::shared_ptr<BaseSnapshot const>> BaseFiles::load(MachineShape const& shape,
                                                                  std::uint64_t tsc_khz) const {
  auto out = std::make_shared<BaseSnapshot>();
  out->shape = shape;
  out->key = key_of(shape);
  auto const dir = fmt::format("{}/{}{}", dir_, kept, out->key);
  struct stat about{};
  if (::stat(dir.c_str(), &about) != 0 && errno == ENOENT)
    return base::fail(base::Code::not_found, "there is no base snapshot yet");
  auto const manifest = read_manifest(dir, *key_);
  if (!manifest) return unusable(manifest.error().message());
  if (manifest->key != out->key || manifest->identity != identity_ || shape_of(*manifest) != shape)
    return unusable("it is one of another machine");
  // Measured anew at each start, so never quite the same.
  auto const apart =
      tsc_khz > manifest->tsc_khz ? tsc_khz - manifest->tsc_khz : manifest->tsc_khz - tsc_khz;
  if (apart > manifest->tsc_khz / 1000)
    return unusable("this host's time-stamp counter has another rate now");
  out->tsc_khz = manifest->tsc_khz;
  out->init_key = manifest->init_key;
  auto state = os::read_text(dir + "/state", state_bytes_max);
  if (!state || state->size() != manifest->state_bytes ||
      sha256_of(*state) != manifest->state_sha256)
    return unusable("its device state is damaged");
  out->state = std::move(*state);
  auto memory = open_file(dir + "/memory", O_RDONLY);
  auto disk = open_file(dir + "/disk.img", O_RDONLY);
  if (!memory || !disk) return unusable("a file of it is missing");
  auto const memory_mark = mark_of(*memory);
  auto const disk_mark = mark_of(*disk);
  if (!memory_mark || memory_mark->bytes != shape.memory_mib * mib)
    return unusable("its memory file has the wrong size");
  if (!disk_mark || disk_mark->bytes != manifest->disk_bytes ||
      disk_mark->changed_ns != manifest->disk_changed_ns)
    return unusable("its disk was changed");
  auto const sum = sha256_of_sparse(*memory);
  if (!sum || *sum != manifest->memory_sha256) return unusable("its memory file is damaged");
  out->memory = std::move(*memory);
  out->disk = std::move(*disk);
  out->memory_mark = *memory_mark;
  out->disk_mark = *disk_mark;
  return std::shared_ptr<BaseSnapshot const>(std::move(out));
}

void BaseFiles::set_aside(MachineShape const& shape, std::string const& reason) const {
  auto const key = key_of(shape);
  auto const from = fmt::format("{}/{}{}", dir_, kept, key);
  auto const to = fmt::format("{}/{}{}", dir_, aside, key);
  remove_all(to);
  if (::rename(from.c_str(), to.c_str()) != 0) {
    if (errno != ENOENT) remove_all(from);
    return;
  }
  // The large files would fill the pool, and nobody may start from them.
  ::unlink((to + "/memory").c_str());
  ::unlink((to + "/disk.img").c_str());
  std::ofstream(to + "/reason") << reason << '\n';
}

void BaseFiles::remove(MachineShape const& shape) const {
  remove_all(fmt::format("{}/{}{}", dir_, kept, key_of(shape)));
}

std::vector<MachineShape> BaseFiles::shapes() const {
  std::vector<MachineShape> out;
  std::error_code failed;
  for (auto const& item : fs::directory_iterator(dir_, failed)) {
    if (!item.path().filename().string().starts_with(kept)) continue;
    auto const manifest = read_manifest(item.path(), *key_);
    if (manifest && manifest->identity == identity_) out.push_back(shape_of(*manifest));
  }
  return out;
}

}  // namespace worker
