#include "base/assert.hpp"
#include "domain/egress_policy.hpp"

#include <cstdint>

// A policy as a stranger writes it, and a request under it:
// `POLICY-JSON\nHOST\nPORT\nMETHOD\nPATH`. Whatever it says, it decides without hanging, a deny
// rule wins, a second level never widens the first, and what a request may do a connection may do.

namespace {

std::string_view line(std::string_view& rest) {
  auto const end = rest.find('\n');
  auto const out = rest.substr(0, end);
  rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
  return out;
}

std::shared_ptr<domain::EgressPolicy const> compile(std::vector<wire::PolicyLevel> levels) {
  auto compiled = domain::EgressPolicy::compile({1, std::move(levels)});
  return compiled ? *compiled : nullptr;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data,
                                      std::size_t size) {  // NOLINT: libFuzzer's name
  // SAFETY: bytes are bytes.
  std::string_view rest(reinterpret_cast<char const*>(data), size);
  auto const policy = wire::decode_text<wire::Policy>(line(rest));
  if (!policy) return 0;
  auto const host = domain::HostName::parse(line(rest));
  auto const port = static_cast<std::uint16_t>(line(rest).size() % 2 == 0 ? 443 : 80);
  std::string const method(line(rest));
  std::string const path(line(rest));
  static_cast<void>(domain::lint(*policy));
  SPACE_ASSERT(domain::diff(*policy, *policy).empty(), "a policy is itself");
  auto const one = compile({{"sandbox", *policy}});
  if (!one || !host) return 0;
  wire::Policy blocked;
  auto const closed = compile({{"organisation", blocked}, {"sandbox", *policy}});
  wire::Policy open;
  open.posture = wire::Posture::open;
  auto const under_open = compile({{"organisation", open}, {"sandbox", *policy}});
  SPACE_ASSERT(closed && under_open, "a level that is fine stays fine below another");
  domain::RequestTuple const request{*host, port, method, path};
  auto const allowed = one->judge_request(request).allowed;
  SPACE_ASSERT(!closed->judge_request(request).allowed && !closed->knows_name(*host),
               "a blocked level blocks");
  SPACE_ASSERT(under_open->judge_request(request).allowed == allowed, "an open level adds nothing");
  if (allowed) {
    SPACE_ASSERT(one->judge_connection(*host, port).allowed, "a request needs its connection");
    SPACE_ASSERT(one->knows_name(*host), "and its name");
  }
  auto denying = *policy;
  wire::PolicyRule never;
  never.id = "never";
  never.hosts = {host->str()};
  never.action = wire::RuleAction::deny;
  denying.rules.push_back(never);
  if (auto const denied = compile({{"sandbox", denying}}))
    SPACE_ASSERT(!denied->judge_request(request).allowed && !denied->knows_name(*host),
                 "a deny rule wins");
  if (path.starts_with('/')) {
    bool const plain = !domain::is_ambiguous_path(path);
    SPACE_ASSERT(!plain || domain::plain_path(domain::plain_path(path)) == domain::plain_path(path),
                 "a path that is clear has one plain form");
  }
  return 0;
}
