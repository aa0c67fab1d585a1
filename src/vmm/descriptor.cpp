#include "vmm/descriptor.hpp"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include <boost/asio/buffer.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <poll.h>

namespace vmm {

namespace asio = boost::asio;

struct Descriptor::Impl {
  explicit Impl(asio::any_io_executor executor) : stream(std::move(executor)) {}

  asio::posix::stream_descriptor stream;
};

Descriptor::Descriptor(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Descriptor::Descriptor(Descriptor&&) noexcept = default;
Descriptor& Descriptor::operator=(Descriptor&&) noexcept = default;
Descriptor::~Descriptor() = default;

base::Result<Descriptor> Descriptor::adopt(asio::any_io_executor executor, os::Fd fd) {
  auto impl = std::make_unique<Impl>(std::move(executor));
  boost::system::error_code error;
  impl->stream.assign(fd.get(), error);
  if (error) return base::fail_errno(error.value(), "watch a descriptor");
  (void)fd.release();  // the stream owns it now
  impl->stream.non_blocking(true, error);
  if (error) return base::fail_errno(error.value(), "make a descriptor non-blocking");
  return Descriptor(std::move(impl));
}

async::Task<std::size_t> Descriptor::read_some(std::span<char> into) {
  boost::system::error_code error;
  auto const got = co_await impl_->stream.async_read_some(
      asio::buffer(into.data(), into.size()), asio::redirect_error(asio::use_awaitable, error));
  if (error == asio::error::operation_aborted)
    co_return base::fail(base::Code::cancelled, "the descriptor was closed");
  if (error) co_return std::size_t{0};
  co_return got;
}

async::Task<void> Descriptor::write_all(std::string text, os::FdRef passed) {
  using asio::posix::stream_descriptor;
  for (;;) {
    iovec bytes{.iov_base = text.data(), .iov_len = text.size()};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
    msghdr message{};
    message.msg_iov = &bytes;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    auto* const head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof(int));
    int const fd = passed.get();
    std::memcpy(CMSG_DATA(head), &fd, sizeof fd);
    auto const sent =
        ::sendmsg(impl_->stream.native_handle(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) co_return co_await write_all(text.substr(static_cast<std::size_t>(sent)));
    if (errno != EAGAIN && errno != EINTR) co_return base::fail_errno("write to a socket");
    boost::system::error_code error;
    co_await impl_->stream.async_wait(stream_descriptor::wait_write,
                                      asio::redirect_error(asio::use_awaitable, error));
    if (error) co_return base::fail(base::Code::cancelled, "the descriptor was closed");
  }
}

async::Task<void> Descriptor::write_all(std::string text) {
  using asio::posix::stream_descriptor;
  for (std::string_view rest = text; !rest.empty();) {
    // send(), because a write to a socket whose peer is gone raises SIGPIPE.
    errno = 0;
    auto const sent = ::send(
        impl_->stream.native_handle(), rest.data(), rest.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) {
      rest.remove_prefix(static_cast<std::size_t>(sent));
    } else if (errno == EAGAIN || errno == EINTR) {
      boost::system::error_code error;
      co_await impl_->stream.async_wait(stream_descriptor::wait_write,
                                        asio::redirect_error(asio::use_awaitable, error));
      if (error) co_return base::fail(base::Code::cancelled, "the descriptor was closed");
    } else {
      co_return base::fail_errno("write to a socket");
    }
  }
  co_return base::Result<void>();
}

asio::awaitable<void> Descriptor::wait_readable() {
  // An event of a descriptor that was closed in the same turn of the loop can end the wait of the
  // one that got its place in the reactor. For a pidfd that would be the end of a machine that
  // lives: ask the kernel.
  for (pollfd state{impl_->stream.native_handle(), POLLIN, 0}; ::poll(&state, 1, 0) < 1;) {
    co_await impl_->stream.async_wait(asio::posix::stream_descriptor::wait_read,
                                      asio::use_awaitable);
  }
}

asio::awaitable<void> Descriptor::wait_writable() {
  co_await impl_->stream.async_wait(asio::posix::stream_descriptor::wait_write,
                                    asio::use_awaitable);
}

void Descriptor::close() noexcept {
  boost::system::error_code ignored;
  impl_->stream.close(ignored);  // NOLINT(bugprone-unused-return-value)
}

asio::awaitable<void> Pace::took(std::size_t bytes) {
  constexpr std::chrono::seconds window(1);
  auto const now = base::system_clock().steady_now();
  if (now - since_ >= window) {
    since_ = now;
    used_ = 0;
  }
  used_ += bytes;
  if (used_ < bytes_per_s_) co_return;
  co_await async::sleep_until(since_ + window);
}

}  // namespace vmm
