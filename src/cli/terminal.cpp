#include "cli/terminal.hpp"

#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>

#include <cerrno>
#include <csignal>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <fcntl.h>
#include <unistd.h>

namespace cli {

std::optional<TerminalSize> size_of_terminal(int fd) {
  winsize size{};
  if (ioctl(fd, TIOCGWINSZ, &size) != 0) return std::nullopt;
  TerminalSize out;
  if (size.ws_col > 0) out.columns = size.ws_col;
  if (size.ws_row > 0) out.rows = size.ws_row;
  return out;
}

RawTerminal::RawTerminal(int fd) : fd_(fd) {
  if (tcgetattr(fd_, &saved_) != 0) return;
  auto raw = saved_;
  cfmakeraw(&raw);
  changed_ = tcsetattr(fd_, TCSADRAIN, &raw) == 0;
}

RawTerminal::~RawTerminal() {
  if (changed_) (void)tcsetattr(fd_, TCSADRAIN, &saved_);
}

struct Reader::Impl {
  asio::posix::stream_descriptor stream;
  int fd;
  bool pollable;

  explicit Impl(asio::any_io_executor executor, int descriptor)
      : stream(std::move(executor)), fd(descriptor) {
    struct stat status{};
    // A regular file is always ready and cannot be polled; everything else is waited for, then
    // read: so it need not be non-blocking, which would be a change of the shared terminal.
    pollable = fstat(fd, &status) == 0 && !S_ISREG(status.st_mode) && !S_ISDIR(status.st_mode);
    int const own = pollable ? fcntl(fd, F_DUPFD_CLOEXEC, 3) : -1;
    if (own >= 0) {
      boost::system::error_code failed;
      stream.assign(own, failed);
      if (failed) {
        ::close(own);
        pollable = false;  // /dev/null and the like: never block
      }
    }
  }
};

Reader::Reader(asio::any_io_executor executor, int fd)
    : impl_(std::make_unique<Impl>(std::move(executor), fd)) {}

Reader::~Reader() = default;

async::Task<std::size_t> Reader::read_some(std::span<char> into) {
  for (;;) {
    if (impl_->pollable) {
      auto const [failed] = co_await impl_->stream.async_wait(
          asio::posix::descriptor_base::wait_read, asio::as_tuple(asio::use_awaitable));
      if (failed) co_return base::fail(base::Code::cancelled, "reading was cancelled");
    }
    auto const got = ::read(impl_->fd, into.data(), into.size());
    if (got >= 0) co_return static_cast<std::size_t>(got);
    if (errno == EIO) co_return 0U;  // the terminal hung up
    if (errno != EINTR && errno != EAGAIN) co_return base::fail_errno("read the input");
  }
}

SignalReader::SignalReader(std::initializer_list<int> signals) {
  sigset_t set;
  sigemptyset(&set);
  for (int const one : signals)
    sigaddset(&set, one);
  pthread_sigmask(SIG_BLOCK, &set, &before_);
  fd_ = os::Fd(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
}

SignalReader::~SignalReader() {
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

async::Task<int> SignalReader::next(asio::any_io_executor executor) {
  Reader reader(std::move(executor), fd_.get());
  signalfd_siginfo info{};
  // SAFETY: the kernel writes whole records of this trivial type.
  auto got = co_await reader.read_some(std::span(reinterpret_cast<char*>(&info), sizeof info));
  if (!got) co_return base::passing(got);
  if (*got != sizeof info) co_return base::fail(base::Code::internal, "no signal could be read");
  co_return static_cast<int>(info.ssi_signo);
}

}  // namespace cli
