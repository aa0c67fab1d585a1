#include "base/result.hpp"

#include <cerrno>
#include <system_error>

namespace base {
namespace {

Code code_of_errno(int error_number) noexcept {
  switch (error_number) {
    case ENOENT:
    case ESRCH:
      return Code::not_found;
    case EEXIST:
    case EBUSY:
      return Code::conflict;
    case EACCES:
    case EPERM:
      return Code::denied;
    case ENOSPC:
    case EDQUOT:
    case EMFILE:
    case ENFILE:
    case ENOMEM:
      return Code::exhausted;
    case ECONNREFUSED:
    case ECONNRESET:
    case EPIPE:
    case EHOSTUNREACH:
    case ENETUNREACH:
      return Code::unavailable;
    case ETIMEDOUT:
      return Code::deadline_exceeded;
    default:
      return Code::internal;
  }
}

}  // namespace

std::unexpected<Error> fail_errno(std::string_view step, std::string detail) {
  return fail_errno(errno, step, std::move(detail));
}

std::unexpected<Error> fail_errno(int error_number, std::string_view step, std::string detail) {
  return fail(code_of_errno(error_number),
              fmt::format("{}: {}", step, std::generic_category().message(error_number)),
              std::move(detail));
}

}  // namespace base
