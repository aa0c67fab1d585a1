#include "agent/pipe_end.hpp"

#include <sys/ioctl.h>

#include <cerrno>

#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <fcntl.h>
#include <unistd.h>

namespace agent {
namespace {

PipeEnd::Moved moved_of(ssize_t result) noexcept {
  if (result > 0) return {PipeEnd::Outcome::done, static_cast<std::size_t>(result)};
  bool const later = result < 0 && (errno == EAGAIN || errno == EINTR);
  return {later ? PipeEnd::Outcome::would_block : PipeEnd::Outcome::closed, 0};
}

}  // namespace

struct PipeEnd::Impl {
  explicit Impl(asio::any_io_executor const& executor) : descriptor(executor) {}

  asio::posix::stream_descriptor descriptor;
};

PipeEnd::PipeEnd(asio::any_io_executor executor, os::Fd fd)
    : impl_(std::make_unique<Impl>(executor)) {
  int const raw = fd.get();
  ::fcntl(raw, F_SETFL, ::fcntl(raw, F_GETFL) | O_NONBLOCK);
  boost::system::error_code error;
  impl_->descriptor.assign(raw, error);
  // On failure (the epoll set is full) the descriptor stays with `fd` and closes; the end is born
  // closed.
  if (!error) fd.release();
}

PipeEnd::~PipeEnd() {
  close();
}

PipeEnd::Moved PipeEnd::try_read(std::span<char> into) noexcept {
  if (!is_open()) return {};
  return moved_of(::read(native_handle(), into.data(), into.size()));
}

PipeEnd::Moved PipeEnd::try_write(std::string_view bytes) noexcept {
  if (!is_open()) return {};
  return moved_of(::write(native_handle(), bytes.data(), bytes.size()));
}

std::size_t PipeEnd::readable_bytes() const noexcept {
  int count = 0;
  if (!is_open() || ::ioctl(native_handle(), FIONREAD, &count) != 0 || count < 0) return 0;
  return static_cast<std::size_t>(count);
}

asio::awaitable<void> PipeEnd::wait_readable() {
  if (!is_open()) co_return;
  boost::system::error_code ended;
  co_await impl_->descriptor.async_wait(asio::posix::stream_descriptor::wait_read,
                                        asio::redirect_error(asio::use_awaitable, ended));
}

asio::awaitable<void> PipeEnd::wait_writable() {
  if (!is_open()) co_return;
  boost::system::error_code ended;
  co_await impl_->descriptor.async_wait(asio::posix::stream_descriptor::wait_write,
                                        asio::redirect_error(asio::use_awaitable, ended));
}

void PipeEnd::close() noexcept {
  boost::system::error_code ignored;
  if (impl_->descriptor.is_open()) impl_->descriptor.close(ignored);
}

bool PipeEnd::is_open() const noexcept {
  return impl_->descriptor.is_open();
}

int PipeEnd::native_handle() const noexcept {
  return is_open() ? impl_->descriptor.native_handle() : -1;
}

}  // namespace agent
