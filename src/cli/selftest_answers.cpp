#include "cli/selftest_answers.hpp"

#include "base/base64.hpp"

#include <algorithm>
#include <array>
#include <charconv>

#include <fmt/format.h>

namespace cli::selftest {
namespace {

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return out;
}

std::string times(std::string_view text, std::size_t count) {
  std::string out;
  out.reserve(text.size() * count);
  while (count-- > 0)
    out += text;
  return out;
}

/// How long the body behind a head is; nothing while its end has not come.
std::optional<std::size_t> body_size(Request const& request, std::string_view rest) {
  if (field_of(request, "transfer-encoding").find("chunked") != std::string::npos) {
    auto const last = rest.starts_with("0\r\n") ? 0 : rest.find("\r\n0\r\n");
    if (last == std::string_view::npos) return std::nullopt;
    auto const end = rest.find("\r\n\r\n", last);
    if (end == std::string_view::npos) return std::nullopt;
    return end + 4;
  }
  std::size_t length = 0;
  auto const said = field_of(request, "content-length");
  std::from_chars(said.data(), said.data() + said.size(), length);
  if (rest.size() < length) return std::nullopt;
  return length;
}

/// The part of the path behind its `skip`th slash.
std::string_view part_of_path(std::string_view path, int skip) {
  for (; skip > 0; --skip) {
    auto const slash = path.find('/');
    if (slash == std::string_view::npos) return {};
    path.remove_prefix(slash + 1);
  }
  return path.substr(0, path.find('/'));
}

/// The credential comes back in pieces, in one encoding; as it is in a header, too.
Answer reflected(Request const& request, std::string_view form) {
  auto const value = field_of(request, "x-api-key");
  auto const text = value.empty() ? std::optional<std::string>("none") : encoded_as(form, value);
  auto const whole = fmt::format("[{}]", text.value_or("no such form"));
  Answer answer{"HTTP/1.1 200 OK\r\nSet-Cookie: session=planted\r\nTransfer-Encoding: chunked\r\n"};
  if (form == "raw") answer.text += fmt::format("X-Echo: {}\r\n", value);
  answer.text += "\r\n";
  std::size_t at = 0;
  for (std::size_t const end : {std::size_t{7}, std::size_t{20}, whole.size()}) {
    auto const piece = whole.substr(std::min(at, whole.size()), end > at ? end - at : 0);
    if (!piece.empty()) answer.text += fmt::format("{:x}\r\n{}\r\n", piece.size(), piece);
    at = std::max(at, end);
  }
  answer.text += "0\r\n\r\n";
  return answer;
}

}  // namespace

std::optional<Request> take_request(std::string& received) {
  auto const end = received.find("\r\n\r\n");
  if (end == std::string::npos) return std::nullopt;
  Request request;
  request.head = received.substr(0, end + 2);
  auto const line = std::string_view(request.head).substr(0, request.head.find("\r\n"));
  auto const space = line.find(' ');
  if (space != std::string_view::npos)
    request.path = line.substr(space + 1, line.find(' ', space + 1) - space - 1);
  auto const body = body_size(request, std::string_view(received).substr(end + 4));
  if (!body) return std::nullopt;
  received.erase(0, end + 4 + *body);
  return request;
}

std::string field_of(Request const& request, std::string_view name) {
  auto const folded = lower(request.head);
  auto const wanted = fmt::format("\r\n{}:", name);
  auto const at = folded.find(wanted);
  if (at == std::string::npos) return {};
  auto const begin = folded.find_first_not_of(' ', at + wanted.size());
  auto const end = folded.find("\r\n", at + wanted.size());
  if (begin == std::string::npos || begin >= end) return {};
  return request.head.substr(begin, end - begin);
}

std::optional<Answer> hostile_answer(std::string_view kind) {
  struct Kind {
    std::string_view name, text;
  };

  using namespace std::string_view_literals;
  static constexpr std::array kinds = {
      Kind{"length_and_chunked",
           "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nEVIL!"
           "\r\n0\r\n\r\n"},
      Kind{"two_lengths",
           "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nEVIL!!"},
      Kind{"odd_coding",
           "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n5\r\nEVIL!\r\n0\r\n\r\n"},
      Kind{"switch_unasked",
           "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "
           "websocket\r\n\r\nEVIL!"},
      Kind{"bad_chunk",
           "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nEVIL!\r\n0\r\n\r\n"},
      Kind{"bare_lf", "HTTP/1.1 200 OK\nContent-Length: 5\n\nEVIL!"},
      Kind{"nul", "HTTP/1.1 200 OK\r\nX: a\0b\r\nContent-Length: 5\r\n\r\nEVIL!"sv},
      Kind{"folded", "HTTP/1.1 200 OK\r\nX: a\r\n b\r\nContent-Length: 5\r\n\r\nEVIL!"},
      Kind{"odd_status", "HTTP/1.1 2000 OK\r\nContent-Length: 5\r\n\r\nEVIL!"},
      Kind{"old_version", "HTTP/0.9 200 OK\r\nContent-Length: 5\r\n\r\nEVIL!"},
      Kind{"no_http", "EVIL! EVIL! EVIL!\r\n\r\n"},
      // Two answers to one request: the second must not become the answer to the next.
      Kind{"one_too_many",
           "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfineHTTP/1.1 200 OK\r\nContent-Length: "
           "5\r\n\r\nEVIL!"}};
  if (kind == "endless_interim")
    return Answer{.text = times("HTTP/1.1 100 Continue\r\n\r\n", 3000), .last = true};
  if (kind == "huge_head")
    return Answer{
        .text = fmt::format("HTTP/1.1 200 OK\r\nX-Big: {}\r\n\r\nEVIL!", times("a", 200'000)),
        .last = true};
  if (kind == "many_fields")
    return Answer{.text = fmt::format("HTTP/1.1 200 OK\r\n{}\r\nEVIL!", times("A: b\r\n", 20'000)),
                  .last = true};
  auto const found = std::ranges::find(kinds, kind, &Kind::name);
  if (found == kinds.end()) return std::nullopt;
  return Answer{.text = std::string(found->text), .last = kind != "one_too_many"};
}

std::optional<std::string> encoded_as(std::string_view form, std::string_view value) {
  std::string out;
  auto const each = [&](std::string_view digits, std::string_view before) {
    for (char const c : value) {
      auto const byte = static_cast<unsigned char>(c);
      out += before;
      out += digits[byte >> 4U];
      out += digits[byte & 15U];
    }
    return out;
  };
  if (form == "raw") return std::string(value);
  if (form == "json") return fmt::format("\"{}\"", value);
  if (form == "hex") return each("0123456789abcdef", "");
  if (form == "hex_upper") return each("0123456789ABCDEF", "");
  if (form == "percent") return each("0123456789ABCDEF", "%");
  if (form == "base64") return base::base64_of(value);
  if (form == "base64_1") return base::base64_of(fmt::format(".{}", value));
  if (form == "base64_2") return base::base64_of(fmt::format("..{}", value));
  if (form == "base64url") {
    out = base::base64_of(value);
    std::ranges::replace(out, '+', '-');
    std::ranges::replace(out, '/', '_');
    return out;
  }
  return std::nullopt;
}

Answer answer_to(Request const& request) {
  if (request.path.starts_with("/v1/reflect/"))
    return reflected(request, part_of_path(request.path, 3));
  if (auto hostile = hostile_answer(part_of_path(request.path, 1))) return std::move(*hostile);
  if (lower(field_of(request, "upgrade")) == "websocket")
    return {.text =
                "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "
                "websocket\r\n\r\n",
            .switched = true};
  return {.text = "HTTP/1.1 200 OK\r\nAlt-Svc: h3=\":443\"\r\nContent-Length: 6\r\n\r\nhello\n"};
}

}  // namespace cli::selftest
