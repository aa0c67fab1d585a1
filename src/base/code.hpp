#pragma once

#include <cstdint>
#include <string_view>

namespace base {

/// What the *caller* can do about a failure. HTTP status, exit code of the command line and "may be
/// tried again" are three tables over this list, in code.cpp, and nowhere else.
enum class Code : std::uint8_t {
  invalid_argument,   // change the request
  unauthenticated,    // say who you are
  denied,             // ask somebody who may
  not_found,          // it does not exist, or not for you
  conflict,           // somebody else was first, or the state does not allow it
  exhausted,          // a quota or a capacity; later or elsewhere
  too_large,          // the body or a field is over its limit
  unavailable,        // try again
  deadline_exceeded,  // the time you gave was over
  cancelled,          // the caller went away
  internal,           // our bug
};

/// The stable, lower-case name that API clients see, e.g. "not_found".
std::string_view name_of(Code code) noexcept;
/// The inverse; unknown names are `internal`.
Code code_named(std::string_view name) noexcept;
int http_status_of(Code code) noexcept;
Code code_of_http_status(int status) noexcept;
/// Exit code of `space`: 1 refused, 2 usage, 3 not found, 4 conflict, 5 unavailable, 124 deadline.
int exit_code_of(Code code) noexcept;
bool may_retry(Code code) noexcept;

}  // namespace base
