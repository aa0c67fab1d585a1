#include "http/serialize.hpp"

#include "http/parser.hpp"

#include <iterator>

namespace http {
namespace {

bool is_connections_own(std::string_view name) {
  static constexpr std::array<std::string_view, 4> names = {
      "Connection", "Keep-Alive", "Transfer-Encoding", "Content-Length"};
  return std::ranges::any_of(names, [&](auto own) { return equal_ignoring_case(own, name); });
}

bool append_checked(std::string& out, std::string_view name, std::string_view value) {
  if (!is_field_name(name) || !is_field_value(value)) return false;
  append_field(out, name, value);
  return true;
}

bool is_target(std::string_view target) {
  return !target.empty() && std::ranges::all_of(target, [](char c) {
    return static_cast<unsigned char>(c) > 0x20 && c != 0x7f;
  });
}

}  // namespace

void append_field(std::string& out, std::string_view name, std::string_view value) {
  out.append(name).append(": ").append(value).append("\r\n");
}

bool append_response_head(std::string& out, int status, Headers const& headers) {
  auto const mark = out.size();
  fmt::format_to(std::back_inserter(out), "HTTP/1.1 {} {}\r\n", status, reason_of(status));
  for (auto const& [name, value] : headers) {
    if (is_connections_own(name)) continue;
    if (append_checked(out, name, value)) continue;
    out.resize(mark);
    return false;
  }
  return true;
}

bool append_request_head(std::string& out, RequestHead const& head) {
  if (!is_field_name(head.method) || !is_target(head.target)) return false;
  auto const mark = out.size();
  out.append(head.method).append(" ").append(head.target).append(" HTTP/1.1\r\n");
  for (auto const& [name, value] : head.headers) {
    if (equal_ignoring_case(name, "Transfer-Encoding") ||
        equal_ignoring_case(name, "Content-Length"))
      continue;
    if (append_checked(out, name, value)) continue;
    out.resize(mark);
    return false;
  }
  return true;
}

void append_chunk(std::string& out, std::string_view bytes) {
  fmt::format_to(std::back_inserter(out), "{:x}\r\n", bytes.size());
  out.append(bytes).append("\r\n");
}

std::string error_body(int status, std::string_view message) {
  std::string out = fmt::format(R"({{"code":{},"message":")", status);
  for (char const c : message) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) >= 0x20) out += c;
  }
  out += "\"}";
  return out;
}

}  // namespace http
