// Policies as people write them on a command line.
#include "cli/layout.hpp"
#include "cli/policy_verbs.hpp"
#include "wire/codec.hpp"

#include <charconv>

#include <unistd.h>

namespace cli {
namespace {

constexpr std::size_t policy_bytes_max = 4 << 20;

base::Result<std::string> read_stdin(std::size_t bytes_max) {
  std::string text;
  std::array<char, 16 * 1024> chunk{};
  for (;;) {
    auto const got = ::read(STDIN_FILENO, chunk.data(), chunk.size());
    if (got < 0) return base::fail_errno("read stdin");
    if (got == 0) return text;
    text.append(chunk.data(), static_cast<std::size_t>(got));
    if (text.size() > bytes_max) return base::fail(base::Code::too_large, "stdin has too much");
  }
}

/// "203.0.113.0/28", "203.0.113.7": a network, not a name.
bool is_network(std::string_view text) {
  auto const digits = text.find_first_not_of("0123456789./");
  return digits == std::string_view::npos && std::ranges::count(text, '.') == 3;
}

}  // namespace

std::string joined(json::value const& list) {
  std::string out;
  auto const* array = list.if_array();
  if (!array) return out;
  for (auto const& one : *array) {
    if (!out.empty()) out += ",";
    out += one.is_string() ? std::string(one.get_string()) : wire::to_text(one);
  }
  return out;
}

json::object empty_policy() {
  return {{"posture", "allowlist"}, {"rules", json::array()}};
}

base::Result<json::object> parse_allow(std::string_view text) {
  auto const bad = [&](std::string_view what) {
    return base::fail(base::Code::invalid_argument,
                      fmt::format("--allow \"{}\": {}; write it like packages.example or "
                                  "api.example:POST,GET:/v1/**",
                                  text,
                                  what));
  };
  json::object rule;
  json::object http;
  auto rest = text;
  if (auto const slash = rest.find(":/"); slash != std::string_view::npos) {
    if (rest.substr(slash + 1).starts_with("//")) return bad("leave out the scheme");
    http["paths"] = json::array{rest.substr(slash + 1)};
    rest = rest.substr(0, slash);
  }
  auto colon = rest.find(':');
  auto const host = rest.substr(0, colon);
  if (host.empty() || host.find_first_of("/?# ") != std::string_view::npos)
    return bad("there is no host in front");
  rule["hosts"] = json::array{host};
  while (colon != std::string_view::npos) {
    rest.remove_prefix(colon + 1);
    colon = rest.find(':');
    auto const part = rest.substr(0, colon);
    std::uint16_t port = 0;
    auto const [end, error] = std::from_chars(part.data(), part.data() + part.size(), port);
    if (error == std::errc() && end == part.data() + part.size() && port > 0) {
      rule["ports"] = json::array{port};
      continue;
    }
    json::array methods;
    for (auto list = part;;) {
      auto const comma = list.find(',');
      auto const method = list.substr(0, comma);
      bool const upper = !method.empty() &&
                         std::ranges::all_of(method, [](char c) { return c >= 'A' && c <= 'Z'; });
      if (!upper)
        return bad(fmt::format("\"{}\" is neither a port nor a method in capitals", method));
      methods.emplace_back(method);
      if (comma == std::string_view::npos) break;
      list.remove_prefix(comma + 1);
    }
    http["methods"] = std::move(methods);
  }
  if (!http.empty()) rule["http"] = std::move(http);
  return rule;
}

base::Result<std::optional<json::object>> policy_of(std::vector<std::string> const& allow,
                                                    std::string const& policy_file) {
  std::optional<json::object> out;
  if (!policy_file.empty() && !allow.empty())
    return base::fail(base::Code::invalid_argument, "give either --allow or --policy");
  if (!policy_file.empty()) {
    auto text = policy_file == "-" ? read_stdin(policy_bytes_max)
                                   : read_file(policy_file, policy_bytes_max);
    if (!text) return base::passing(text);
    auto value = wire::parse_json(*text, policy_bytes_max);
    if (!value) return base::passing(value, policy_file);
    if (!value->is_object())
      return base::fail(base::Code::invalid_argument, "a policy is a JSON object");
    out = std::move(value->get_object());
    return out;
  }
  if (allow.empty()) return out;
  out = empty_policy();
  auto& rules = (*out)["rules"].as_array();
  for (auto const& one : allow) {
    if (is_network(one)) {
      auto& cidr = (*out)["cidr"];
      if (cidr.is_null()) cidr = json::object{{"allow", json::array()}};
      cidr.at("allow").as_array().emplace_back(one);
      continue;
    }
    auto rule = parse_allow(one);
    if (!rule) return base::passing(rule);
    (*rule)["id"] = fmt::format("allow-{}", rules.size() + 1);
    rules.emplace_back(std::move(*rule));
  }
  return out;
}

std::string allow_text(json::value const& rule) {
  auto const& http = member_of(rule, "http");
  auto const hosts = joined(member_of(rule, "hosts"));
  auto const ports = joined(member_of(rule, "ports"));
  auto const methods = joined(member_of(http, "methods"));
  auto const* paths = member_of(http, "paths").if_array();
  auto const count = paths ? paths->size() : 0;
  if (hosts.find(',') != std::string::npos || ports.find(',') != std::string::npos || count > 1)
    return {};
  auto text = hosts;
  if (!ports.empty()) text += ":" + ports;
  if (!methods.empty()) text += ":" + methods;
  if (count == 1) text += ":" + std::string(paths->at(0).as_string());
  return text;
}

}  // namespace cli
