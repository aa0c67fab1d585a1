#pragma once

#include "async/task.hpp"
#include "os/fd.hpp"

#include <span>

#include <termios.h>

/// The user's own terminal and other descriptors that are no sockets.
namespace cli {

namespace asio = boost::asio;

struct TerminalSize {
  std::uint16_t columns = 80;
  std::uint16_t rows = 24;
  friend bool operator==(TerminalSize const&, TerminalSize const&) = default;
};

/// Nothing when `fd` is no terminal.
std::optional<TerminalSize> size_of_terminal(int fd);

/// Raw mode from construction to destruction: keys arrive as typed, ctrl-c included. Put back
/// whatever happens short of SIGKILL: the owner keeps signals from ending the process (see
/// SignalReader).
class RawTerminal {
 public:
  explicit RawTerminal(int fd);
  ~RawTerminal();
  RawTerminal(RawTerminal const&) = delete;
  RawTerminal& operator=(RawTerminal const&) = delete;

 private:
  int fd_;
  bool changed_ = false;
  termios saved_{};
};

/// Reads a descriptor of any kind (terminal, pipe, file) on the loop. Borrows it; sets O_NONBLOCK
/// on an own open file description where it can, so that other programs that share the terminal are
/// not disturbed.
class Reader {
 public:
  Reader(asio::any_io_executor executor, int fd);
  ~Reader();
  /// 0 at the end.
  async::Task<std::size_t> read_some(std::span<char> into);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Takes signals away from their default action and hands them out one by one. Block them before
/// the process has threads: construct it first.
class SignalReader {
 public:
  explicit SignalReader(std::initializer_list<int> signals);
  ~SignalReader();
  SignalReader(SignalReader const&) = delete;
  SignalReader& operator=(SignalReader const&) = delete;
  /// The next signal's number.
  async::Task<int> next(asio::any_io_executor executor);

 private:
  sigset_t before_{};
  os::Fd fd_;
};

}  // namespace cli
