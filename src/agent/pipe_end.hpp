#pragma once

#include "async/task.hpp"
#include "os/fd.hpp"

#include <memory>
#include <span>
#include <string_view>

namespace agent {

namespace asio = boost::asio;

/// Our end of a command's pipe or terminal, non-blocking. One reader and one writer may wait at a
/// time; closing it ends their waits.
class PipeEnd {
 public:
  enum class Outcome : std::uint8_t { done, would_block, closed };

  struct Moved {
    Outcome outcome = Outcome::closed;
    std::size_t bytes = 0;
  };

  /// Takes the descriptor and makes it non-blocking (which for a pipe concerns our end alone).
  PipeEnd(asio::any_io_executor executor, os::Fd fd);
  ~PipeEnd();
  PipeEnd(PipeEnd const&) = delete;
  PipeEnd& operator=(PipeEnd const&) = delete;

  /// `closed` is the end of the stream, or a terminal whose last user has gone.
  Moved try_read(std::span<char> into) noexcept;
  /// `closed` means that nobody can read it any more.
  Moved try_write(std::string_view bytes) noexcept;
  /// How many bytes could be read at once.
  std::size_t readable_bytes() const noexcept;

  asio::awaitable<void> wait_readable();
  asio::awaitable<void> wait_writable();

  void close() noexcept;
  bool is_open() const noexcept;
  int native_handle() const noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace agent
