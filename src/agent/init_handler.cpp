#include "agent/init_handler.hpp"

#include "base/fault.hpp"

#include <charconv>

namespace agent {
namespace {

constexpr std::size_t body_bytes_max = 4u << 20;

bool is_hex(std::string_view text) {
  return text.find_first_not_of("0123456789abcdefABCDEF") == std::string_view::npos;
}

bool is_key(std::string_view text) {
  return text.size() == 64 && is_hex(text);
}

std::string bytes_of_hex(std::string_view hex) {
  std::string out;
  out.reserve(hex.size() / 2);
  for (std::size_t i = 0; i + 2 <= hex.size(); i += 2) {
    unsigned byte = 0;
    std::from_chars(hex.data() + i, hex.data() + i + 2, byte, 16);
    out.push_back(static_cast<char>(byte));
  }
  return out;
}

/// Labels of letters, digits and dashes: it goes into files that others parse.
bool is_hostname(std::string_view text) {
  if (text.empty() || text.size() > 64 || text.front() == '-' || text.front() == '.') return false;
  return std::ranges::all_of(text, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '.';
  });
}

bool is_certificates(std::string_view pem) {
  constexpr std::size_t bytes_max = 256 * 1024;
  return pem.size() <= bytes_max && pem.starts_with("-----BEGIN CERTIFICATE-----\n") &&
         pem.find("\n-----END CERTIFICATE-----") != std::string_view::npos &&
         pem.find('\0') == std::string_view::npos;
}

/// What is wrong with a request whose key was right; "" when nothing is.
std::string problem_of(wire::AgentInit const& init) {
  if (init.entropy.size() < 64 || init.entropy.size() % 2 != 0 || !is_hex(init.entropy)) {
    return init.entropy.empty() ? "" : "entropy: expected at least 64 hex digits";
  }
  return "";
}

std::string names_problem_of(wire::AgentInit const& init) {
  if (!init.hostname.empty() && !is_hostname(init.hostname)) return "hostname: not a host name";
  if (!init.machine_id.empty() && (init.machine_id.size() != 32 || !is_hex(init.machine_id))) {
    return "machine_id: expected 32 hex digits";
  }
  if (init.nonce.find_first_of("\r\n") != std::string::npos || init.nonce.size() > 256)
    return "nonce: not a token";
  auto const none = std::map<std::string, std::string>();
  for (auto const& [name, value] : init.envVars ? *init.envVars : none) {
    bool const bad = name.empty() || name.find('=') != std::string::npos ||
                     name.find('\0') != std::string::npos || value.find('\0') != std::string::npos;
    if (bad) return "envVars: a name is empty or holds '=', or a text holds NUL";
  }
  if (init.caBundle && !is_certificates(*init.caBundle)) return "caBundle: no certificates in PEM";
  if (init.defaultUser && init.defaultUser->empty()) return "defaultUser: empty";
  return "";
}

struct Reader {
  std::string_view left;
  bool ok = true;

  int digits(std::size_t count) {
    int value = 0;
    auto const text = left.substr(0, count);
    auto const [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    ok = ok && text.size() == count && error == std::errc() && stop == text.data() + count &&
         text[0] != '-';
    left.remove_prefix(text.size());
    return value;
  }

  void expect(char c) {
    ok = ok && left.starts_with(c);
    if (!left.empty()) left.remove_prefix(1);
  }
};

std::chrono::nanoseconds fraction_of(Reader& reader) {
  std::int64_t nanoseconds = 0;
  if (!reader.left.starts_with('.')) return {};
  reader.left.remove_prefix(1);
  std::int64_t unit = 100'000'000;
  bool any = false;
  while (!reader.left.empty() && reader.left.front() >= '0' && reader.left.front() <= '9') {
    nanoseconds += unit * (reader.left.front() - '0');
    unit /= 10;
    any = true;
    reader.left.remove_prefix(1);
  }
  reader.ok = reader.ok && any;
  return std::chrono::nanoseconds(nanoseconds);
}

std::chrono::minutes offset_of(Reader& reader) {
  if (reader.left == "Z" || reader.left == "z") return {};
  int const sign = reader.left.starts_with('-') ? -1 : 1;
  if (sign > 0) {
    reader.expect('+');
  } else {
    reader.expect('-');
  }
  int const hours = reader.digits(2);
  reader.expect(':');
  int const minutes = reader.digits(2);
  reader.ok = reader.ok && reader.left.empty();
  return std::chrono::minutes(sign * (hours * 60 + minutes));
}

}  // namespace

base::Result<base::WallTime> parse_rfc3339(std::string_view text) {
  Reader reader{text};
  int const year = reader.digits(4);
  reader.expect('-');
  int const month = reader.digits(2);
  reader.expect('-');
  int const day = reader.digits(2);
  bool const t =
      reader.left.starts_with('T') || reader.left.starts_with('t') || reader.left.starts_with(' ');
  if (!reader.left.empty()) reader.left.remove_prefix(1);
  int const hour = reader.digits(2);
  reader.expect(':');
  int const minute = reader.digits(2);
  reader.expect(':');
  int const second = reader.digits(2);
  auto const fraction = fraction_of(reader);
  auto const offset = offset_of(reader);
  std::chrono::year_month_day const date{std::chrono::year(year),
                                         std::chrono::month(static_cast<unsigned>(month)),
                                         std::chrono::day(static_cast<unsigned>(day))};
  bool const in_range =
      date.ok() && year >= 1970 && year < 2262 && hour < 24 && minute < 60 && second < 61;
  if (!reader.ok || !t || !in_range) {
    return base::fail(base::Code::invalid_argument, "expected a time like 2030-01-01T00:00:00Z");
  }
  base::WallTime out{std::chrono::sys_days(date)};
  out += std::chrono::hours(hour) + std::chrono::minutes(minute) + std::chrono::seconds(second) -
         offset;
  return out + std::chrono::duration_cast<base::WallTime::duration>(fraction);
}

asio::awaitable<void> InitHandler::handle(http::Request& request, http::ResponseWriter& response) {
  auto const body = co_await request.body.read_all(body_bytes_max);
  http::Response answer;
  if (body) {
    answer = apply(*body);
  } else {
    answer = json_error(base::http_status_of(body.error().code()), body.error().message());
  }
  auto const sent = co_await response.send(std::move(answer));
  static_cast<void>(sent);  // the host asks again when it got no answer
}

http::Response InitHandler::apply(std::string_view body) {
  // Unknown keys are for a later agent; the worker may be newer than the snapshot that we were
  // saved in.
  auto init = wire::decode_text<wire::AgentInit>(body, wire::UnknownKeys::ignore, body_bytes_max);
  if (!init) return json_error(400, init.error().message());
  if (!context_.init_key.empty()) {
    if (!context_.init_key.equals(init->init_key))
      return json_error(401, "this key does not open this machine");
  } else if (!is_key(init->init_key)) {
    return json_error(400, "init_key: expected 64 hex digits");
  }
  auto problem = problem_of(*init);
  if (!init->next_init_key.empty() && !is_key(init->next_init_key))
    problem = "next_init_key: expected 64 hex digits";
  if (problem.empty()) problem = names_problem_of(*init);
  base::Result<base::WallTime> time;
  if (problem.empty() && !init->timestamp.empty()) {
    time = parse_rfc3339(init->timestamp);
    if (!time) problem = "timestamp: " + time.error().message();
  }
  if (!problem.empty()) return json_error(400, problem);
  if (SPACE_FAULT("agent.init.apply")) return json_error(500, "fault point");
  // All is known to be good: from here on it takes effect as a whole.
  if (time) machine_.step_clock(*time);
  auto const nonce = init->nonce;
  take(std::move(*init));
  http::Response answer{204, {}, {}};
  answer.headers.add("X-Space-Nonce", nonce);
  return answer;
}

void InitHandler::take(wire::AgentInit init) {
  if (!init.entropy.empty()) machine_.credit_entropy(bytes_of_hex(init.entropy));
  machine_.grow_root();  // a machine that goes on from a snapshot may have got a larger disk
  if (init.goes_on) machine_.end_connections();
  if (!init.hostname.empty()) machine_.set_hostname(init.hostname);
  if (!init.machine_id.empty()) machine_.set_machine_id(init.machine_id);
  context_.init_key =
      base::Secret(std::move(init.next_init_key.empty() ? init.init_key : init.next_init_key));
  if (init.accessToken) context_.access_token = base::Secret(std::move(*init.accessToken));
  if (init.caBundle) {
    machine_.trust_authority(*init.caBundle);
    context_.trusts_gateway = true;
  }
  if (init.envVars) context_.env = std::move(*init.envVars);
  if (init.defaultUser) context_.default_user = std::move(*init.defaultUser);
  if (init.defaultWorkdir) context_.default_workdir = std::move(*init.defaultWorkdir);
}

}  // namespace agent
