#include "base/code.hpp"

#include <array>

namespace base {
namespace {

struct Row {
  Code code;
  std::string_view name;
  int http_status;
  int exit_code;
  bool retry;
};

constexpr std::array rows = {
    Row{Code::invalid_argument, "invalid_argument", 400, 2, false},
    Row{Code::unauthenticated, "unauthenticated", 401, 1, false},
    Row{Code::denied, "denied", 403, 1, false},
    Row{Code::not_found, "not_found", 404, 3, false},
    Row{Code::conflict, "conflict", 409, 4, false},
    Row{Code::exhausted, "exhausted", 429, 1, true},
    Row{Code::too_large, "too_large", 413, 2, false},
    Row{Code::unavailable, "unavailable", 503, 5, true},
    Row{Code::deadline_exceeded, "deadline_exceeded", 504, 124, true},
    Row{Code::cancelled, "cancelled", 499, 1, true},
    Row{Code::internal, "internal", 500, 1, false},
};

Row const& row_of(Code code) noexcept {
  for (auto const& row : rows)
    if (row.code == code) return row;
  return rows.back();
}

}  // namespace

std::string_view name_of(Code code) noexcept {
  return row_of(code).name;
}

Code code_named(std::string_view name) noexcept {
  for (auto const& row : rows)
    if (row.name == name) return row.code;
  return Code::internal;
}

int http_status_of(Code code) noexcept {
  return row_of(code).http_status;
}

Code code_of_http_status(int status) noexcept {
  for (auto const& row : rows)
    if (row.http_status == status) return row.code;
  if (status == 502) return Code::unavailable;
  return status >= 400 && status < 500 ? Code::invalid_argument : Code::internal;
}

int exit_code_of(Code code) noexcept {
  return row_of(code).exit_code;
}

bool may_retry(Code code) noexcept {
  return row_of(code).retry;
}

}  // namespace base
