#include "agent/connect_rpc.hpp"

#include "base/base64.hpp"
#include "wire/codec.hpp"

#include <charconv>

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>

namespace agent {
namespace {

struct CodeRow {
  RpcCode code;
  std::string_view name;
  int status;
};

constexpr CodeRow code_rows[] = {
    {RpcCode::canceled, "canceled", 499},
    {RpcCode::unknown, "unknown", 500},
    {RpcCode::invalid_argument, "invalid_argument", 400},
    {RpcCode::deadline_exceeded, "deadline_exceeded", 504},
    {RpcCode::not_found, "not_found", 404},
    {RpcCode::already_exists, "already_exists", 409},
    {RpcCode::permission_denied, "permission_denied", 403},
    {RpcCode::resource_exhausted, "resource_exhausted", 429},
    {RpcCode::failed_precondition, "failed_precondition", 400},
    {RpcCode::unimplemented, "unimplemented", 501},
    {RpcCode::internal, "internal", 500},
    {RpcCode::unavailable, "unavailable", 503},
    {RpcCode::unauthenticated, "unauthenticated", 401},
};

CodeRow const& row_of(RpcCode code) noexcept {
  for (auto const& row : code_rows) {
    if (row.code == code) return row;
  }
  return code_rows[1];
}

RpcCode rpc_code_of(base::Code code) noexcept {
  switch (code) {
    case base::Code::invalid_argument:
      return RpcCode::invalid_argument;
    case base::Code::unauthenticated:
      return RpcCode::unauthenticated;
    case base::Code::denied:
      return RpcCode::permission_denied;
    case base::Code::not_found:
      return RpcCode::not_found;
    case base::Code::conflict:
      return RpcCode::already_exists;
    case base::Code::exhausted:
    case base::Code::too_large:
      return RpcCode::resource_exhausted;
    case base::Code::unavailable:
      return RpcCode::unavailable;
    case base::Code::deadline_exceeded:
      return RpcCode::deadline_exceeded;
    case base::Code::cancelled:
      return RpcCode::canceled;
    case base::Code::internal:
      break;
  }
  return RpcCode::internal;
}

json::object error_object(RpcError const& error) {
  return {{"code", name_of(error.code)}, {"message", error.message}};
}

/// "exitCode" → "exit_code": the name in the .proto file, which parsers have to accept as well.
std::string snake_case_of(std::string_view name) {
  std::string out;
  for (char const c : name) {
    if (c >= 'A' && c <= 'Z') {
      out.push_back('_');
      out.push_back(static_cast<char>(c - 'A' + 'a'));
    } else {
      out.push_back(c);
    }
  }
  return out;
}

bool has_nul(std::string_view text) {
  return text.find('\0') != std::string_view::npos;
}

std::optional<std::uint32_t> u32_of(json::value const& value) {
  if (auto const* i = value.if_int64()) {
    return std::in_range<std::uint32_t>(*i) ? std::optional(static_cast<std::uint32_t>(*i))
                                            : std::nullopt;
  }
  if (auto const* d = value.if_double()) {
    // "1.0" and "1e3" are integers in protobuf's JSON.
    if (*d < 0 || *d > 4294967295.0) return std::nullopt;
    auto const whole = static_cast<std::uint32_t>(*d);
    return static_cast<double>(whole) == *d ? std::optional(whole) : std::nullopt;
  }
  if (auto const* text = value.if_string()) {
    std::uint32_t number = 0;
    auto const* end = text->data() + text->size();
    auto const [stop, error] = std::from_chars(text->data(), end, number);
    return error == std::errc() && stop == end ? std::optional(number) : std::nullopt;
  }
  return std::nullopt;
}

}  // namespace

std::string_view name_of(RpcCode code) noexcept {
  return row_of(code).name;
}

int http_status_of(RpcCode code) noexcept {
  return row_of(code).status;
}

RpcError rpc_error_of(base::Error const& error) {
  return {rpc_code_of(error.code()), error.message()};
}

asio::awaitable<RpcResult<json::value>> RpcService::unary(RpcCall call, json::value) {
  co_return rpc_fail(RpcCode::unimplemented, fmt::format("{} is no unary method", call.method));
}

asio::awaitable<RpcResult<std::unique_ptr<MessageSource>>> RpcService::open_stream(RpcCall call,
                                                                                   json::value) {
  co_return rpc_fail(RpcCode::unimplemented, fmt::format("{} is no streaming method", call.method));
}

asio::awaitable<RpcResult<json::value>> RpcService::client_stream(RpcCall call, MessageReader&) {
  co_return rpc_fail(RpcCode::unimplemented, fmt::format("{} is no streaming method", call.method));
}

Fields::Fields(json::value const& message) : value_(&message) {
  if (!message.is_object())
    problem_ = RpcError{RpcCode::invalid_argument, "the message is not a JSON object"};
}

json::value const* Fields::find(std::string_view name) const {
  auto const* object = value_->if_object();
  if (!object) return nullptr;
  auto const* found = object->if_contains(name);
  if (!found) found = object->if_contains(snake_case_of(name));
  return found && !found->is_null() ? found : nullptr;
}

void Fields::fail(std::string_view name, std::string_view expected) {
  if (problem_) return;
  problem_ = RpcError{RpcCode::invalid_argument, fmt::format("{}: expected {}", name, expected)};
}

std::optional<std::string> Fields::optional_text(std::string_view name) {
  auto const* value = find(name);
  if (!value) return std::nullopt;
  auto const* text = value->if_string();
  if (!text) return fail(name, "a string"), std::nullopt;
  if (has_nul(*text)) return fail(name, "a string without NUL characters"), std::nullopt;
  return std::string(*text);
}

std::string Fields::text(std::string_view name) {
  return optional_text(name).value_or(std::string());
}

std::uint32_t Fields::u32(std::string_view name) {
  auto const* value = find(name);
  if (!value) return 0;
  auto const number = u32_of(*value);
  if (!number) fail(name, "an integer from 0 to 4294967295");
  return number.value_or(0);
}

std::optional<bool> Fields::optional_boolean(std::string_view name) {
  auto const* value = find(name);
  if (!value) return std::nullopt;
  auto const* yes = value->if_bool();
  if (!yes) return fail(name, "a boolean"), std::nullopt;
  return *yes;
}

bool Fields::boolean(std::string_view name) {
  return optional_boolean(name).value_or(false);
}

std::optional<std::string> Fields::optional_bytes(std::string_view name) {
  auto const* value = find(name);
  if (!value) return std::nullopt;
  auto const* text = value->if_string();
  auto bytes = text ? base::base64_decoded(*text) : std::nullopt;
  if (!bytes) fail(name, "bytes as base64");
  return bytes;
}

std::vector<std::string> Fields::texts(std::string_view name) {
  std::vector<std::string> out;
  auto const* value = find(name);
  if (!value) return out;
  auto const* array = value->if_array();
  if (!array) return fail(name, "an array of strings"), out;
  for (auto const& one : *array) {
    auto const* text = one.if_string();
    if (!text || has_nul(*text))
      return fail(name, "an array of strings without NUL characters"), out;
    out.emplace_back(*text);
  }
  return out;
}

std::vector<std::pair<std::string, std::string>> Fields::text_map(std::string_view name) {
  std::vector<std::pair<std::string, std::string>> out;
  auto const* value = find(name);
  if (!value) return out;
  auto const* object = value->if_object();
  if (!object) return fail(name, "an object of strings"), out;
  for (auto const& pair : *object) {
    auto const* text = pair.value().if_string();
    if (!text || has_nul(*text) || has_nul(pair.key())) {
      return fail(name, "an object of strings without NUL characters"), out;
    }
    out.emplace_back(std::string(pair.key()), std::string(*text));
  }
  return out;
}

int Fields::enumerator(std::string_view name,
                       std::vector<std::pair<std::string_view, int>> const& names) {
  auto const* value = find(name);
  if (!value) return 0;
  auto const* text = value->if_string();
  auto const number = text ? std::nullopt : u32_of(*value);
  std::string known;
  for (auto const& [one, its_number] : names) {
    if (text && *text == one) return its_number;
    if (number && static_cast<int>(*number) == its_number) return its_number;
    known += (known.empty() ? "" : ", ") + std::string(one);
  }
  fail(name, "one of: " + known);
  return 0;
}

json::value const* Fields::message(std::string_view name) {
  auto const* value = find(name);
  if (value && !value->is_object()) return fail(name, "an object"), nullptr;
  return value;
}

void append_envelope(std::string& out, std::uint8_t flags, std::string_view payload) {
  auto const size = static_cast<std::uint32_t>(payload.size());
  char const head[5] = {static_cast<char>(flags),
                        static_cast<char>(size >> 24),
                        static_cast<char>(size >> 16),
                        static_cast<char>(size >> 8),
                        static_cast<char>(size)};
  out.append(head, sizeof head);
  out.append(payload);
}

std::string end_payload(RpcResult<void> const& result) {
  if (result) return "{}";
  return wire::to_text(json::object{{"error", error_object(result.error())}});
}

RpcResult<std::optional<EnvelopeParser::Envelope>> EnvelopeParser::next() {
  std::string_view const left = std::string_view(buffer_).substr(taken_);
  if (left.size() < 5) return std::optional<Envelope>();
  std::size_t size = 0;
  for (int i = 1; i < 5; ++i)
    size = size << 8 | static_cast<unsigned char>(left[static_cast<std::size_t>(i)]);
  if (size > payload_max_) {
    return rpc_fail(RpcCode::resource_exhausted,
                    fmt::format("a message is over {} bytes", payload_max_));
  }
  if (left.size() - 5 < size) return std::optional<Envelope>();
  Envelope out{static_cast<std::uint8_t>(left[0]), std::string(left.substr(5, size))};
  taken_ += 5 + size;
  if (taken_ == buffer_.size() || taken_ > 64 * 1024) {
    buffer_.erase(0, taken_);
    taken_ = 0;
  }
  return std::optional<Envelope>(std::move(out));
}

http::Response json_answer(int status, json::value const& body) {
  return {status, {{"content-type", "application/json"}}, wire::to_text(body)};
}

http::Response json_error(int status, std::string_view message) {
  return json_answer(status, json::object{{"code", status}, {"message", message}});
}

}  // namespace agent
