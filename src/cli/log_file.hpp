#pragma once

#include "os/fd.hpp"

#include <string>

namespace cli {

/// A program's log, fed with the bytes of its stderr. Over `bytes_max` it becomes <path>.1 (older
/// ones .2, .3; the fourth goes). A full disk loses lines, never blocks the program: write errors
/// are counted and dropped.
class LogFile {
 public:
  explicit LogFile(std::string path, std::size_t bytes_max = 16U << 20)
      : path_(std::move(path)), bytes_max_(bytes_max) {}

  void append(std::string_view bytes) noexcept;

  std::size_t lost_bytes() const noexcept { return lost_; }

 private:
  void open_again() noexcept;
  void rotate() noexcept;

  std::string path_;
  std::size_t bytes_max_;
  std::size_t size_ = 0;
  std::size_t lost_ = 0;
  os::Fd file_;
};

}  // namespace cli
