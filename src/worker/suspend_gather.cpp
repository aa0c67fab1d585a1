#include "worker/suspend_gather.hpp"

#include "async/beside.hpp"

#include <cerrno>

#include <unistd.h>

namespace worker {
namespace {

base::Result<void> write_file(os::FdRef file, std::string_view text) {
  while (!text.empty()) {
    auto const done = ::write(file.get(), text.data(), text.size());
    if (done < 0 && errno == EINTR) continue;
    if (done < 0 && (errno == ENOSPC || errno == EDQUOT))
      return base::fail(base::Code::exhausted, "the host's pool has no room for its state");
    if (done <= 0) return base::fail_errno("write the machine's state");
    text.remove_prefix(static_cast<std::size_t>(done));
  }
  return {};
}

}  // namespace

base::Result<void> Gather::prepare() {
  auto made = store_.begin(saved.name);
  if (!made) return std::unexpected(made.error());
  dir_ = std::move(*made);
  auto opened = hostd_.open_memory(slot);
  if (!opened) return std::unexpected(opened.error());
  memory_ = std::move(*opened);
  auto file = StateStore::create(dir_, "pages");
  if (!file) return std::unexpected(file.error());
  pages_ = std::move(*file);
  // Its disk is flushed and cloned while it stands still: of that, too, little shall be left.
  auto step = disks_.link_disk(sandbox, dir_);
  if (step) step = StateStore::sync(dir_, "disk.img");
  if (step && !saved.base.empty()) step = disks_.link_base(sandbox, dir_);
  if (step && !ends) step = prepare_copy();
  return step;
}

/// The first sync may have taken long: what came meanwhile is less, and so is what comes after it.
base::Result<void> Gather::prepare_copy() {
  auto step = held_.make_room(memory_, address, saved.memory_mib, held_max);
  if (step) step = StateStore::sync(dir_, "disk.img");
  if (step && ::unlink((dir_ + "/disk.img").c_str()) != 0)
    step = base::fail_errno("clear a saved machine's directory");
  return step;
}

base::Result<void> Gather::take() {
  if (ends) {
    auto beside = async::beside([this] { return keep_rest(); });
    auto const copied = write_pages(PagesFor::rest);
    auto const rest = beside.get();
    return copied ? rest : copied;
  }
  auto beside = async::beside([this] { return disks_.copy_out(sandbox, dir_ + "/disk.img"); });
  auto const held = held_.take(memory_, address, saved.memory_mib);
  base::Result<void> copied;
  if (!held) copied = std::unexpected(held.error());
  if (held && !*held) copied = write_pages(PagesFor::copying);
  auto const disk = beside.get();
  return copied ? disk : copied;
}

base::Result<void> Gather::finish() {
  if (ends) return {};
  auto step = keep_rest();
  if (step && !written_) step = write_held();
  return step;
}

base::Result<void> Gather::keep_rest() {
  auto const file = StateStore::create(dir_, "state");
  if (!file) return std::unexpected(file.error());
  auto step = write_file(*file, state);
  // Beside the pages of a machine that ends: less is left to wait for.
  if (step && ends) step = StateStore::sync(dir_, "state");
  saved.state_bytes = state.size();
  saved.state_sha256 = sha256_of(state);
  if (step && note) step = note();
  return step;
}

base::Result<void> Gather::write_pages(PagesFor use) {
  auto const copied =
      save_changed_pages(memory_, address, saved.memory_mib, !saved.base.empty(), pages_, use);
  if (!copied) return std::unexpected(copied.error());
  saved.pages_bytes = copied->bytes;
  saved.pages_sha256 = copied->sha256;
  written_ = true;
  return {};
}

base::Result<void> Gather::write_held() {
  auto const copied = save_held_pages(held_, saved.memory_mib, !saved.base.empty(), pages_);
  if (!copied) return std::unexpected(copied.error());
  saved.pages_bytes = copied->bytes;
  saved.pages_sha256 = copied->sha256;
  held_ = HeldPages();
  return {};
}

}  // namespace worker
