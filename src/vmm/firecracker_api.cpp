#include "vmm/firecracker_api.hpp"

#include "vmm/exit_cause.hpp"
#include "wire/codec.hpp"

#include <algorithm>
#include <charconv>

namespace vmm::firecracker {
namespace {

bool same_word(std::string_view one, std::string_view other) {
  return std::ranges::equal(one, other, [](char a, char b) {
    auto const lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; };
    return lower(a) == lower(b);
  });
}

template <class T> std::optional<T> number_of(std::string_view digits) {
  T value{};
  auto const* const end = digits.data() + digits.size();
  auto const [at, error] = std::from_chars(digits.data(), end, value);
  if (error != std::errc() || at != end || digits.empty()) return std::nullopt;
  return value;
}

struct Head {
  int status = 0;
  std::size_t body_bytes = 0;
};

base::Result<Head> parse_head(std::string_view head) {
  auto const bad = [](char const* what) { return base::fail(base::Code::invalid_argument, what); };
  auto line = head.substr(0, head.find("\r\n"));
  // "HTTP/1.1 204 ": the reason is nearly always empty, its blank sometimes missing.
  if (!line.starts_with("HTTP/1.1 ") || line.size() < 12) return bad("not a status line");
  auto const status = number_of<int>(line.substr(9, 3));
  if (!status || *status < 100 || *status > 599) return bad("no status");
  if (line.size() > 12 && line[12] != ' ') return bad("not a status line");
  Head result{.status = *status};
  bool measured = false;
  head.remove_prefix(std::min(head.size(), line.size() + 2));
  while (!head.empty()) {
    line = head.substr(0, head.find("\r\n"));
    head.remove_prefix(std::min(head.size(), line.size() + 2));
    auto const colon = line.find(':');
    if (colon == std::string_view::npos || colon == 0) return bad("not a header");
    auto const name = line.substr(0, colon);
    auto value = line.substr(colon + 1);
    while (value.starts_with(' '))
      value.remove_prefix(1);
    if (same_word(name, "Transfer-Encoding")) return bad("a transfer coding");
    if (!same_word(name, "Content-Length")) continue;
    auto const bytes = number_of<std::uint32_t>(value);
    if (!bytes || measured) return bad("a bad length");
    if (*bytes > body_bytes_max) return base::fail(base::Code::too_large, "a body over its limit");
    measured = true;
    result.body_bytes = *bytes;
  }
  return result;
}

}  // namespace

std::string request_text(std::string_view method, std::string_view path, std::string_view body) {
  auto text = fmt::format(
      "{} {} HTTP/1.1\r\nHost: localhost\r\nAccept: application/json\r\n", method, path);
  if (!body.empty()) {
    text += fmt::format("Content-Type: application/json\r\nContent-Length: {}\r\n", body.size());
  }
  text += "\r\n";
  text += body;
  return text;
}

base::Result<void> ResponseReader::feed(std::string_view bytes) {
  if (broken_) return base::fail(base::Code::unavailable, "the conversation is over");
  broken_ = true;  // until the end of this function
  if (pending_.size() + bytes.size() > 2 * (head_bytes_max + body_bytes_max))
    return base::fail(base::Code::exhausted, "more than anybody asked for");
  pending_ += bytes;
  if (!ready_) {
    auto taken = take_one();
    if (!taken) return base::passing(taken);
  }
  broken_ = false;
  return {};
}

/// True when a response became ready.
base::Result<bool> ResponseReader::take_one() {
  auto const end = pending_.find("\r\n\r\n");
  if (std::min(end, pending_.size()) > head_bytes_max)
    return base::fail(base::Code::too_large, "a head over its limit");
  if (end == std::string::npos) return false;
  auto const head = parse_head(std::string_view(pending_).substr(0, end));
  if (!head) return std::unexpected(head.error());
  auto const whole = end + 4 + head->body_bytes;
  if (pending_.size() < whole) return false;
  ready_ = Response{head->status, pending_.substr(end + 4, head->body_bytes)};
  pending_.erase(0, whole);
  return true;
}

std::optional<Response> ResponseReader::next() {
  auto response = std::exchange(ready_, std::nullopt);
  if (response && !broken_ && !take_one()) broken_ = true;
  return response;
}

std::string fault_in(std::string_view body) {
  constexpr std::size_t words_max = 512;
  auto const parsed = wire::parse_json(body, body_bytes_max);
  auto const* object = parsed ? parsed->if_object() : nullptr;
  auto const* fault = object ? object->if_contains("fault_message") : nullptr;
  auto const* text = fault ? fault->if_string() : nullptr;
  if (text) return printable_tail(std::string_view(*text), 100, words_max);
  return printable_tail(body, 100, words_max);
}

std::optional<Version> parse_version(std::string_view text) {
  auto const dot = text.find('.');
  if (dot == std::string_view::npos) return std::nullopt;
  auto const rest = text.substr(dot + 1);
  auto const major = number_of<int>(text.substr(0, dot));
  auto const minor = number_of<int>(rest.substr(0, rest.find_first_not_of("0123456789")));
  if (!major || !minor || *major < 0) return std::nullopt;
  return Version{*major, *minor};
}

Client::Client(boost::asio::any_io_executor executor, Descriptor connection)
    : connection_(std::move(connection)), turns_(std::move(executor)) {}

async::Task<json::value> Client::call(std::string method,
                                      std::string path,
                                      json::object body,
                                      base::Deadline deadline) {
  auto const text = method == "GET" ? std::string() : wire::to_text(body);
  if (text.size() > request_body_bytes_max)
    co_return base::fail(base::Code::invalid_argument, "a request larger than Firecracker takes");
  auto answer = co_await async::with_deadline(deadline, exchange(request_text(method, path, text)));
  if (!answer && answer.error().code() == base::Code::internal) {
    co_return base::fail(base::Code::internal,
                         "the virtual machine's monitor refused",
                         fmt::format("{} {}: {}", method, path, answer.error().detail()));
  }
  co_return answer;
}

async::Task<json::value> Client::exchange(std::string request) {
  auto const turn = co_await turns_.enter();
  if (over_) co_return base::fail(base::Code::unavailable, "the monitor's connection is over");
  // Only here can a call be given up without harm: half a request, or an answer that nobody counts,
  // would leave the two sides talking past each other.
  over_ = true;
  auto const sent = co_await connection_.write_all(std::move(request));
  if (!sent) co_return base::fail(base::Code::unavailable, "the monitor's connection is over");
  over_ = false;
  ++owed_;
  std::optional<Response> response;
  while (owed_ > 0) {
    auto received = co_await receive();
    if (!received) co_return std::unexpected(received.error());
    --owed_;
    response = std::move(*received);
  }
  if (response->status / 100 == 2) {
    if (response->body.empty()) co_return json::value();
    auto parsed = wire::parse_json(response->body, body_bytes_max);
    if (!parsed)
      co_return base::fail(
          base::Code::internal, "an answer that is no JSON", parsed.error().message());
    co_return std::move(*parsed);
  }
  auto words = fmt::format("{} {}", response->status, fault_in(response->body));
  // Too many connections: it hangs up. Any other error of its HTTP layer is followed by a parser
  // out of step.
  bool const lost = response->status == 503 || !response->body.contains("fault_message");
  if (lost) over_ = true;
  co_return base::fail(lost ? base::Code::unavailable : base::Code::internal,
                       "the monitor refused",
                       std::move(words));
}

async::Task<Response> Client::receive() {
  std::vector<char> buffer(std::size_t{16} * 1024);
  for (;;) {
    if (auto response = reader_.next()) co_return std::move(*response);
    auto const got = co_await connection_.read_some(buffer);
    // Given up by its caller: the answer stays owed.
    if (!got) co_return std::unexpected(got.error());
    if (*got == 0) {
      over_ = true;
      co_return base::fail(base::Code::unavailable, "the monitor's connection is over");
    }
    auto const fed = reader_.feed(std::string_view(buffer.data(), *got));
    if (!fed) {
      over_ = true;
      co_return base::fail(base::Code::unavailable,
                           "the monitor's connection is over",
                           "not an answer: " + fed.error().message());
    }
  }
}

void Client::close() noexcept {
  over_ = true;
  connection_.close();
}

}  // namespace vmm::firecracker
