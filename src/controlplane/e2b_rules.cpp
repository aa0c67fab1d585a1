#include "controlplane/e2b_rules.hpp"

#include "domain/host_name.hpp"

#include <algorithm>
#include <cstring>
#include <set>

namespace controlplane::e2b {
namespace {

constexpr std::size_t domains_max = 10;
constexpr std::size_t domain_bytes_max = 128;
constexpr std::size_t headers_max = 20;
constexpr std::size_t header_bytes_max = 64;
constexpr std::size_t value_bytes_max = 2048;

/// Set by the gateway itself, or by the connection.
constexpr std::string_view not_settable[] = {
    "host",
    "content-length",
    "transfer-encoding",
    "connection",
    "proxy-connection",
    "keep-alive",
    "te",
    "trailer",
    "upgrade",
    "expect",
    "accept-encoding",
};

constexpr std::string_view plain_headers[] = {
    "accept",
    "accept-language",
    "cache-control",
    "content-type",
    "origin",
    "referer",
    "user-agent",
};

std::unexpected<base::Error> bad(std::string_view domain, std::string what) {
  return base::fail(base::Code::invalid_argument,
                    fmt::format("network.rules[\"{}\"]: {}", domain.substr(0, 100), what));
}

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return out;
}

bool is_header_name(std::string_view name) {
  auto const fits = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-';
  };
  return !name.empty() && name.size() <= header_bytes_max && std::ranges::all_of(name, fits);
}

base::Result<void> check_header(std::string_view domain, std::string_view name) {
  if (!is_header_name(name))
    return bad(domain,
               "a header's name has 1 to 64 letters, digits and dashes; others are not available");
  if (std::ranges::find(not_settable, lower(name)) != std::end(not_settable))
    return bad(domain, fmt::format("{} is the connection's own header and cannot be set", name));
  return {};
}

/// Never repeats the value.
base::Result<void> check_value(std::string_view domain,
                               std::string_view name,
                               std::string_view value) {
  auto const of = [&](std::string_view what) {
    return bad(domain, fmt::format("the value of {} {}", name, what));
  };
  if (value.empty())
    return of("is empty; values are never shown, so what was read back has to be said again");
  if (value.size() > value_bytes_max) return of("has more than 2048 bytes");
  if (value.find("${e2b.") != std::string_view::npos)
    return of(
        "has a placeholder; they are not available in this version: say the value itself, which is "
        "sealed at once, or use `space credential put`");
  bool const visible = std::ranges::all_of(value, [](char c) { return c >= 0x20 && c < 0x7f; });
  if (!visible || value.front() == ' ' || value.back() == ' ')
    return of("has to be visible ASCII, without spaces at its ends");
  return {};
}

void wipe(json::string& text) {
  ::explicit_bzero(text.data(), text.size());
  text.clear();
}

/// Every string below, whatever its place: nothing of a refused document stays in memory.
void wipe_all(json::value& value) {
  if (auto* text = value.if_string()) wipe(*text);
  if (auto* array = value.if_array())
    for (auto& one : *array)
      wipe_all(one);
  if (auto* object = value.if_object())
    for (auto& [name, one] : *object)
      wipe_all(one);
}

/// The headers of a domain's only transform; null: it has none.
base::Result<json::object*> headers_of(std::string_view domain, json::value& list) {
  auto* rules = list.if_array();
  if (!rules) return bad(domain, "expected a list with one {\"transform\": …}");
  if (rules->size() > 1) return bad(domain, "at most one transform for each domain");
  if (rules->empty()) return nullptr;
  auto* rule = rules->front().if_object();
  if (!rule) return bad(domain, "expected {\"transform\": …}");
  for (auto const& [name, value] : *rule)
    if (name != "transform")
      return bad(domain, fmt::format("unknown key \"{}\"", std::string_view(name).substr(0, 40)));
  auto* transform = rule->if_contains("transform");
  if (!transform || transform->is_null()) return nullptr;
  if (!transform->is_object()) return bad(domain, "transform: expected an object");
  for (auto const& [name, value] : transform->get_object())
    if (name != "headers")
      return bad(domain,
                 fmt::format("transform: \"{}\" is not available, only headers",
                             std::string_view(name).substr(0, 40)));
  auto* headers = transform->get_object().if_contains("headers");
  if (!headers || headers->is_null()) return nullptr;
  if (!headers->is_object()) return bad(domain, "transform.headers: expected an object");
  if (headers->get_object().size() > headers_max) return bad(domain, "at most 20 headers");
  return &headers->get_object();
}

base::Result<std::string> host_of(std::string_view domain) {
  auto const name = domain.size() > domain_bytes_max
                        ? base::Result<domain::HostName>(base::fail(
                              base::Code::invalid_argument, "a domain has at most 128 bytes"))
                        : domain::HostName::parse(domain);
  if (name) return name->str();
  return bad(domain,
             fmt::format("headers are set for exact host names, not for patterns or addresses ({})",
                         name.error().message()));
}

base::Result<void> take_domain(std::string_view domain,
                               json::value& list,
                               std::set<std::string>& hosts,
                               std::vector<HeaderRule>& out) {
  auto host = host_of(domain);
  if (!host) return base::passing(host);
  if (!hosts.insert(*host).second) return bad(domain, "the same host twice");
  auto headers = headers_of(domain, list);
  if (!headers) return base::passing(headers);
  if (!*headers) return {};
  std::set<std::string> names;
  for (auto& [key, value] : **headers) {
    std::string_view const name = key;
    if (auto ok = check_header(domain, name); !ok) return ok;
    if (!names.insert(lower(name)).second)
      return bad(domain, fmt::format("{} is there twice", name));
    auto* text = value.if_string();
    if (!text) return bad(domain, fmt::format("the value of {} is no string", name));
    if (auto ok = check_value(domain, name, *text); !ok) return ok;
    out.emplace_back(*host, std::string(name), std::string(*text));
    wipe(*text);
  }
  return {};
}

}  // namespace

HeaderRule::~HeaderRule() {
  ::explicit_bzero(value.data(), value.size());
}

base::Result<std::vector<HeaderRule>> take_header_rules(json::value& rules) {
  std::vector<HeaderRule> out;
  if (rules.is_null()) return out;
  auto const taken = [&]() -> base::Result<void> {
    auto* domains = rules.if_object();
    if (!domains)
      return base::fail(base::Code::invalid_argument,
                        "network.rules: expected an object with a domain's rules under its name");
    if (domains->size() > domains_max)
      return base::fail(base::Code::invalid_argument, "network.rules: at most 10 domains");
    std::set<std::string> hosts;
    for (auto& [domain, list] : *domains)
      if (auto ok = take_domain(domain, list, hosts, out); !ok) return ok;
    return {};
  }();
  if (taken) return out;
  wipe_all(rules);
  return std::unexpected(taken.error());
}

bool is_plain_header(std::string_view header) {
  return std::ranges::find(plain_headers, lower(header)) != std::end(plain_headers);
}

std::string credential_name_of(std::string_view host, std::string_view header) {
  return fmt::format("e2b:{}:{}", host, lower(header));
}

}  // namespace controlplane::e2b
