#pragma once

#include "base/result.hpp"

#include <string_view>
#include <utility>

namespace os {

/// An owned descriptor; -1 when empty. Close-on-exec by convention of everything in this folder.
/// Parameters say what they do: `Fd` takes, `FdRef` borrows.
class Fd {
 public:
  Fd() noexcept = default;

  explicit Fd(int fd) noexcept : fd_(fd) {}

  Fd(Fd&& from) noexcept : fd_(std::exchange(from.fd_, -1)) {}

  Fd& operator=(Fd&& from) noexcept {
    if (this != &from) {
      reset();
      fd_ = std::exchange(from.fd_, -1);
    }
    return *this;
  }

  Fd(Fd const&) = delete;
  Fd& operator=(Fd const&) = delete;

  ~Fd() { reset(); }

  int get() const noexcept { return fd_; }

  explicit operator bool() const noexcept { return fd_ >= 0; }

  int release() noexcept { return std::exchange(fd_, -1); }

  void reset() noexcept;
  /// fsync, then close, with the result of both. For files whose content matters.
  base::Result<void> sync_and_close();
  /// A second, independent owner (close-on-exec).
  base::Result<Fd> duplicate() const;

 private:
  int fd_ = -1;
};

class FdRef {
 public:
  FdRef(Fd const& fd) noexcept : fd_(fd.get()) {}  // NOLINT(google-explicit-constructor)

  explicit FdRef(int fd) noexcept : fd_(fd) {}

  int get() const noexcept { return fd_; }

 private:
  int fd_;
};

}  // namespace os
