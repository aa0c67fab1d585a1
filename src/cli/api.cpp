#include "cli/api.hpp"

#include "base/id.hpp"
#include "cli/installation.hpp"
#include "cli/layout.hpp"
#include "tls/tls.hpp"
#include "wire/codec.hpp"

#include <charconv>
#include <cstdlib>

namespace cli {
namespace {

using namespace std::chrono_literals;

std::string variable(char const* name) {
  char const* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): before any thread
  return value ? value : "";
}

std::string trimmed(std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r' || text.back() == ' '))
    text.pop_back();
  return text;
}

/// The configuration that every program of this host's installation reads.
base::Result<wire::Config> running_config() {
  auto const run_dir = run_dir_or_default("");
  auto config = wire::load_config(run_dir + "/config.json");
  if (!config && config.error().code() == base::Code::not_found) {
    return base::fail(base::Code::unavailable,
                      "the platform does not run on this host and SPACE_API_URL is not set; start "
                      "it with: space up");
  }
  return config;
}

base::Result<base::Secret> find_key(std::string const& key_file, std::string const& admin_key) {
  if (key_file.empty()) {
    if (auto key = variable("SPACE_API_KEY"); !key.empty())
      return base::Secret(trimmed(std::move(key)));
  }
  auto const path = key_file.empty() ? admin_key : key_file;
  if (path.empty())
    return base::fail(base::Code::unauthenticated,
                      "there is no key; set SPACE_API_KEY, or give --key-file FILE");
  auto text = read_file(path, 4096);
  if (text) return base::Secret(trimmed(std::move(*text)));
  if (!key_file.empty()) return base::passing(text);
  return base::fail(base::Code::unauthenticated,
                    "there is no key; set SPACE_API_KEY (root on the platform's host needs none)");
}

}  // namespace

base::Result<ApiAddress> parse_address(std::string_view url, std::string ca_file) {
  auto const bad = [&] {
    return base::fail(base::Code::invalid_argument,
                      fmt::format("\"{}\" is no address of an API; write it like "
                                  "http://127.0.0.1:7380 or https://api.example.org",
                                  url));
  };
  ApiAddress address{.ca_file = std::move(ca_file)};
  auto rest = url;
  if (rest.starts_with("https://")) {
    address.tls = true;
    rest.remove_prefix(8);
  } else if (rest.starts_with("http://")) {
    rest.remove_prefix(7);
  } else {
    return bad();
  }
  while (rest.ends_with('/'))
    rest.remove_suffix(1);
  address.port = address.tls ? 443 : 80;
  auto const bracket = rest.starts_with('[') ? rest.find(']') : std::string_view::npos;
  auto const colon = rest.find(':', bracket == std::string_view::npos ? 0 : bracket);
  auto host = rest.substr(0, colon);
  if (bracket != std::string_view::npos)
    host = host.size() > 2 ? host.substr(1, host.size() - 2) : std::string_view();
  if (colon != std::string_view::npos) {
    auto const digits = rest.substr(colon + 1);
    auto const [end, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), address.port);
    if (error != std::errc() || end != digits.data() + digits.size() || address.port == 0)
      return bad();
  }
  if (host.empty() || host.find_first_of("/?#@ ") != std::string_view::npos) return bad();
  address.host = host;
  return address;
}

base::Result<Target> find_target(std::string const& url, std::string const& key_file) {
  auto const chosen = url.empty() ? variable("SPACE_API_URL") : url;
  auto config = running_config();
  std::string ca_file = variable("SPACE_CA_FILE");
  if (config && ca_file.empty() && chosen.find(config->domain) != std::string::npos)
    ca_file = ca_path(*config);
  if (!config && chosen.empty()) return base::passing(config);
  auto address = parse_address(chosen.empty() ? http_address(*config) : chosen, std::move(ca_file));
  if (!address) return base::passing(address);
  auto key = find_key(key_file, config ? admin_key_path(*config) : std::string());
  if (!key) return base::passing(key);
  return Target{std::move(*address), std::move(*key)};
}

Api::Api(asio::any_io_executor executor, Target target)
    : address_(std::move(target.address)),
      key_(std::move(target.key)),
      client_(std::move(executor), [this] { return open(); }) {}

async::Task<net::Stream> Api::open() const {
  auto stream = co_await net::connect_host(address_.host, address_.port);
  if (!stream) {
    co_return base::fail(
        base::Code::unavailable,
        fmt::format("the API at {}:{} cannot be reached ({}); does it run? See: space doctor",
                    address_.host,
                    address_.port,
                    stream.error().message()));
  }
  if (!address_.tls) co_return std::move(*stream);
  auto context = tls::ClientContext::make(address_.ca_file);
  if (!context) co_return base::passing(context);
  co_return co_await tls::connect(
      std::move(*context), std::move(*stream), address_.host, base::system_clock().in(15s));
}

http::RequestHead Api::head(std::string method, std::string target) const {
  http::RequestHead head{std::move(method), std::move(target), {}};
  bool const standard = address_.port == (address_.tls ? 443 : 80);
  head.headers.add("Host",
                   standard ? address_.host : fmt::format("{}:{}", address_.host, address_.port));
  head.headers.add("Authorization", "Bearer " + key_.reveal());
  head.headers.add("User-Agent", "space");
  return head;
}

async::Task<json::value> Api::call(std::string method,
                                   std::string target,
                                   json::value body,
                                   base::Deadline deadline) {
  auto request = head(method, std::move(target));
  std::string text;
  if (!body.is_null()) {
    text = wire::to_text(body);
    request.headers.add("Content-Type", "application/json");
  }
  if (method == "POST") {
    auto chosen = std::exchange(next_idempotency_key_, {});
    request.headers.add("Idempotency-Key",
                        chosen.empty() ? base::random_hex(16) : std::move(chosen));
  }
  auto response = co_await client_.request(std::move(request), std::move(text), deadline);
  if (!response) co_return base::passing(response);
  if (response->status / 100 != 2)
    co_return std::unexpected(error_of(response->status, response->body));
  if (response->body.empty()) co_return json::value(nullptr);
  auto value = wire::parse_json(response->body, 64U << 20);
  if (!value) co_return base::fail(base::Code::internal, "the answer of the API is no JSON");
  co_return std::move(*value);
}

async::Task<std::string> Api::download(std::string target,
                                       base::Deadline deadline,
                                       std::size_t limit) {
  auto response = co_await client_.request(head("GET", std::move(target)), {}, deadline, limit);
  if (!response) co_return base::passing(response);
  if (response->status / 100 != 2)
    co_return std::unexpected(error_of(response->status, response->body));
  co_return std::move(response->body);
}

async::Task<std::unique_ptr<http::Exchange>> Api::stream(std::string method,
                                                         std::string target,
                                                         std::string body,
                                                         http::Headers headers,
                                                         base::Deadline deadline) {
  auto request = head(std::move(method), std::move(target));
  for (auto const& [name, value] : headers)
    request.headers.add(name, value);
  auto exchange = co_await client_.stream(std::move(request), std::move(body), deadline);
  if (!exchange) co_return base::passing(exchange);
  auto const status = (*exchange)->head.status;
  if (status / 100 == 2) co_return std::move(*exchange);
  auto text = co_await (*exchange)->body().read_all(1U << 20);
  co_return std::unexpected(error_of(status, text ? *text : std::string()));
}

async::Task<http::Connection> Api::connect() {
  auto stream = co_await open();
  if (!stream) co_return base::passing(stream);
  co_return http::Connection(std::move(*stream));
}

base::Error error_of(int status, std::string_view body) {
  auto value = wire::parse_json(body);
  if (value && value->is_object()) {
    auto const* code = value->as_object().if_contains("code");
    auto const* message = value->as_object().if_contains("message");
    if (message && message->is_string()) {
      auto const named = code && code->is_string()
                             ? base::code_named(std::string_view(code->as_string()))
                             : base::code_of_http_status(status);
      return {named, std::string(message->as_string())};
    }
  }
  return {base::code_of_http_status(status),
          fmt::format("the API answered {} {}", status, http::reason_of(status))};
}

bool EventParser::feed(std::string_view bytes, std::vector<ServerEvent>& events) {
  pending_.append(bytes);
  std::size_t start = 0;
  for (auto end = pending_.find('\n'); end != std::string::npos; end = pending_.find('\n', start)) {
    auto line = std::string_view(pending_).substr(start, end - start);
    if (line.ends_with('\r')) line.remove_suffix(1);
    take_line(line, events);
    start = end + 1;
  }
  pending_.erase(0, start);
  return pending_.size() + current_.data.size() <= 4U << 20;
}

void EventParser::take_line(std::string_view line, std::vector<ServerEvent>& events) {
  if (line.empty()) {
    if (has_data_) events.push_back(current_);
    current_.type.clear();
    current_.data.clear();
    has_data_ = false;
    return;
  }
  auto const colon = line.find(':');
  auto const field = line.substr(0, colon);
  auto value = colon == std::string_view::npos ? std::string_view() : line.substr(colon + 1);
  if (value.starts_with(' ')) value.remove_prefix(1);
  if (field == "id") current_.id = value;
  if (field == "event") current_.type = value;
  if (field == "data") {
    if (has_data_) current_.data += '\n';
    current_.data += value;
    has_data_ = true;
  }
}

}  // namespace cli
