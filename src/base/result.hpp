#pragma once

#include "base/code.hpp"

#include <expected>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

namespace base {

/// An expected failure: what the caller can do (`code`) and a sentence a tenant may read
/// (`message`). `detail` is for operators only (paths, addresses, upstream text): it reaches logs,
/// never answers.
class Error {
 public:
  Error(Code code, std::string message, std::string detail = {})
      : code_(code), message_(std::move(message)), detail_(std::move(detail)) {}

  Code code() const noexcept { return code_; }

  std::string const& message() const noexcept { return message_; }

  std::string const& detail() const noexcept { return detail_; }

  /// The same failure, with the step that failed in front: "wait for the agent: no answer in time".
  Error during(std::string_view step) && {
    return {code_, fmt::format("{}: {}", step, message_), std::move(detail_)};
  }

 private:
  Code code_;
  std::string message_;
  std::string detail_;
};

/// A value or the reason why there is none. A class of its own so that a dropped result warns, and
/// default-constructible (as an error) because asio needs that on its exception path.
template <class T> class [[nodiscard]] Result : public std::expected<T, Error> {
 public:
  using std::expected<T, Error>::expected;

  Result() : std::expected<T, Error>(std::unexpect, Code::internal, "no result was produced") {}
};

template <> class [[nodiscard]] Result<void> : public std::expected<void, Error> {
 public:
  using std::expected<void, Error>::expected;
  Result() = default;
};

inline std::unexpected<Error> fail(Code code, std::string message, std::string detail = {}) {
  return std::unexpected(Error(code, std::move(message), std::move(detail)));
}

/// Hands a failure up and adds what only this layer knows: `co_return passing(disk, "clone the
/// disk");`
template <class T> std::unexpected<Error> passing(Result<T>& failed, std::string_view step) {
  return std::unexpected(std::move(failed.error()).during(step));
}

template <class T> std::unexpected<Error> passing(Result<T>& failed) {
  return std::unexpected(std::move(failed.error()));
}

/// `internal` failure of a system call: "open the disk: No such file or directory". Reads errno
/// first.
std::unexpected<Error> fail_errno(std::string_view step, std::string detail = {});
/// The same with a given error number.
std::unexpected<Error> fail_errno(int error_number, std::string_view step, std::string detail = {});

}  // namespace base
