#include "worker/suspend_gather.hpp"

#include "async/beside.hpp"
#include "worker/memory_pages.hpp"

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
  if (step && !ends && ::unlink((dir_ + "/disk.img").c_str()) != 0)
    step = base::fail_errno("clear a saved machine's directory");
  if (step && !saved.base.empty()) step = disks_.link_base(sandbox, dir_);
  return step;
}

base::Result<void> Gather::take() {
  auto beside = async::beside([this] { return keep_rest(); });
  auto const copied = save_changed_pages(memory_,
                                         address,
                                         saved.memory_mib,
                                         !saved.base.empty(),
                                         pages_,
                                         ends ? PagesFor::rest : PagesFor::copying);
  auto const rest = beside.get();
  if (!copied) return std::unexpected(copied.error());
  saved.pages_bytes = copied->bytes;
  saved.pages_sha256 = copied->sha256;
  return rest;
}

base::Result<void> Gather::keep_rest() {
  auto const file = StateStore::create(dir_, "state");
  if (!file) return std::unexpected(file.error());
  auto step = write_file(*file, state);
  saved.state_bytes = state.size();
  saved.state_sha256 = sha256_of(state);
  if (step && !ends) step = disks_.copy_out(sandbox, dir_ + "/disk.img");
  if (step && note) step = note();
  return step;
}
}  // namespace worker
