#pragma once

#include "async/task.hpp"
#include "os/fd.hpp"

#include <memory>
#include <span>

namespace vmm {

/// Any descriptor that the kernel can poll (pipe, socket, pidfd) on the loop. Process-scoped.
class Descriptor {
 public:
  /// Takes `fd` and makes it non-blocking.
  static base::Result<Descriptor> adopt(boost::asio::any_io_executor executor, os::Fd fd);
  Descriptor(Descriptor&&) noexcept;
  Descriptor& operator=(Descriptor&&) noexcept;
  ~Descriptor();

  /// At least one byte, or 0 at the end (also when the other side broke).
  async::Task<std::size_t> read_some(std::span<char> into);
  /// Sockets only. Whole text, as fast as the other side takes it.
  async::Task<void> write_all(std::string text);
  /// The same with a descriptor (borrowed) beside its first byte. Unix sockets only.
  async::Task<void> write_all(std::string text, os::FdRef passed);
  /// For a pidfd: its process has ended.
  boost::asio::awaitable<void> wait_readable();
  /// For a socket whose connect() is under way: it has ended, well or not.
  boost::asio::awaitable<void> wait_writable();
  /// Pending operations end with an error. Idempotent.
  void close() noexcept;

 private:
  struct Impl;
  explicit Descriptor(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// Slows a reader of hostile output down to `bytes_per_s`, so that a flood costs the loop little.
class Pace {
 public:
  explicit Pace(std::size_t bytes_per_s) : bytes_per_s_(bytes_per_s) {}

  /// After a read of `bytes`: returns at once while the budget of this second lasts.
  boost::asio::awaitable<void> took(std::size_t bytes);

 private:
  std::size_t bytes_per_s_;
  std::size_t used_ = 0;
  base::SteadyTime since_;
};

}  // namespace vmm
