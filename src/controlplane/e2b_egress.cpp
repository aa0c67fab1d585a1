// E2B's words about outgoing traffic as a policy of the sandbox's own level, at its create and
// later.
#include "base/id.hpp"
#include "controlplane/e2b_routes.hpp"
#include "domain/host_name.hpp"

#include <arpa/inet.h>

#include <algorithm>
#include <charconv>

namespace controlplane::e2b {
namespace {

using base::Code;

constexpr std::string_view all_traffic = "0.0.0.0/0";

struct NetworkUpdate {
  std::optional<std::vector<std::string>> allowOut;
  std::optional<std::vector<std::string>> denyOut;
  std::optional<bool> allow_internet_access;
  json::value rules;
  json::value egressProxy;
};
BOOST_DESCRIBE_STRUCT(NetworkUpdate,
                      (),
                      (allowOut, denyOut, allow_internet_access, rules, egressProxy))

std::vector<std::string> list_in(json::object const& network, std::string_view name) {
  std::vector<std::string> out;
  auto const* value = network.if_contains(name);
  if (!value || !value->is_array()) return out;
  for (auto const& one : value->get_array())
    if (one.is_string()) out.emplace_back(one.get_string());
  return out;
}

/// "10.1.2.3/8" → "10.0.0.0/8"; nothing for IPv6, which guests do not have.
std::optional<std::string> ipv4_network(std::string const& text) {
  auto const slash = text.find('/');
  in_addr address{};
  if (::inet_pton(AF_INET, text.substr(0, slash).c_str(), &address) != 1) return std::nullopt;
  unsigned bits = 32;
  if (slash != std::string::npos)
    std::from_chars(text.data() + slash + 1, text.data() + text.size(), bits);
  std::uint32_t const mask = bits == 0 ? 0 : ~std::uint32_t{0} << (32 - std::min(bits, 32U));
  address.s_addr = htonl(ntohl(address.s_addr) & mask);
  std::array<char, INET_ADDRSTRLEN> shown{};
  ::inet_ntop(AF_INET, &address, shown.data(), shown.size());
  return fmt::format("{}/{}", shown.data(), std::min(bits, 32U));
}

bool is_address(std::string const& text) {
  auto const address = text.substr(0, text.find('/'));
  std::array<unsigned char, 16> bytes{};
  return ::inet_pton(AF_INET, address.c_str(), bytes.data()) == 1 ||
         ::inet_pton(AF_INET6, address.c_str(), bytes.data()) == 1;
}

bool present(json::value const& value) {
  if (auto const* object = value.if_object()) return !object->empty();
  if (auto const* array = value.if_array()) return !array->empty();
  return !value.is_null();
}

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return out;
}

bool is_host(std::string_view said, std::string_view host) {
  return lower(said) == host;
}

/// "a.example", "*.a.example" (below it), "*".
bool is_allowed(wire::PolicyRule const& names, std::string_view host) {
  return std::ranges::any_of(names.hosts, [&](std::string const& said) {
    if (said == "*") return true;
    if (said.starts_with("*.")) return host.ends_with(lower(said).substr(1));
    return is_host(said, host);
  });
}

/// The credentials that take_header_rules() and seal() make of a domain's headers.
std::vector<wire::Injection> injections_of(std::string_view host, json::value const& list) {
  std::vector<wire::Injection> out;
  auto const* rules = list.if_array();
  auto const* rule = rules && !rules->empty() ? rules->front().if_object() : nullptr;
  auto const* transform = rule ? rule->if_contains("transform") : nullptr;
  auto const* headers = transform && transform->is_object()
                            ? transform->get_object().if_contains("headers")
                            : nullptr;
  if (!headers || !headers->is_object()) return out;
  for (auto const& [name, value] : headers->get_object())
    out.push_back({credential_name_of(host, name)});
  return out;
}

/// Headers are set over TLS alone; the same host at port 80 is what it is without them. A host that
/// is not allowed does not become so by having headers.
std::vector<wire::PolicyRule> transforms_of(json::object const& network,
                                            wire::PolicyRule const& names,
                                            wire::Posture posture) {
  std::vector<wire::PolicyRule> out;
  auto const* rules = network.if_contains("rules");
  if (!rules || !rules->is_object()) return out;
  for (auto const& [domain, list] : rules->get_object()) {
    auto const name = domain::HostName::parse(std::string_view(domain));
    if (!name || (posture != wire::Posture::open && !is_allowed(names, name->str()))) continue;
    auto injections = injections_of(name->str(), list);
    if (injections.empty()) continue;
    wire::PolicyRule secure;
    secure.id = "rules." + name->str();
    secure.hosts = {name->str()};
    secure.ports = {443};
    secure.http.emplace().websocket = true;
    secure.inject = std::move(injections);
    wire::PolicyRule plain;
    plain.id = secure.id + ".80";
    plain.hosts = secure.hosts;
    plain.ports = {80};
    plain.http = secure.http;
    out.push_back(std::move(secure));
    out.push_back(std::move(plain));
  }
  return out;
}

}  // namespace

/// Allow beats deny, as these users expect: names and networks of allowOut are the exceptions from
/// what denyOut closes. Private and special addresses stay closed whatever it says.
wire::Policy egress_of(json::value const& kept) {
  wire::Policy policy;
  policy.binding = wire::Binding::name;
  policy.posture = wire::Posture::open;
  static json::object const nothing;
  auto const& network = kept.is_object() ? kept.get_object() : nothing;
  auto const* internet = network.if_contains("allowInternetAccess");
  bool const closed = internet && internet->is_bool() && !internet->get_bool();
  if (closed) policy.posture = wire::Posture::allowlist;
  wire::PolicyRule names;
  names.id = "allowOut";
  names.http.emplace().websocket = true;  // these lists speak of hosts, whatever is done there
  for (auto const& one : list_in(network, "allowOut")) {
    if (!is_address(one))
      names.hosts.push_back(one);
    else if (auto cidr = ipv4_network(one))
      policy.cidr.allow.push_back(std::move(*cidr));
  }
  for (auto const& one : list_in(network, "denyOut")) {
    if (closed) break;  // it replaces the other denials
    if (one == all_traffic)
      policy.posture = wire::Posture::allowlist;
    else if (auto cidr = ipv4_network(one))
      policy.cidr.deny.push_back(std::move(*cidr));
  }
  auto transforms = transforms_of(network, names, policy.posture);
  // A host's own rules decide alone.
  for (auto const& rule : transforms)
    std::erase_if(names.hosts,
                  [&](std::string const& host) { return is_host(host, rule.hosts.front()); });
  if (!names.hosts.empty()) policy.rules.push_back(std::move(names));
  std::ranges::move(transforms, std::back_inserter(policy.rules));
  return policy;
}

/// Each under a fresh id: a value that comes again is a new one to the broker and to the machines.
async::Task<std::vector<store::SandboxCredential>> E2b::seal(std::vector<HeaderRule> rules,
                                                             base::Deadline deadline) {
  std::vector<store::SandboxCredential> out;
  for (auto& rule : rules) {
    wire::Seal request;
    request.credential = base::make_uuid7();
    request.value = rule.value;
    request.binding.hosts = {rule.host};
    request.binding.header = rule.header;
    if (is_plain_header(rule.header)) request.binding.form = "plain";
    auto sealed = co_await sealer_.seal(std::move(request), deadline);
    if (!sealed) co_return base::passing(sealed, "network.rules");
    out.push_back({credential_name_of(rule.host, rule.header), std::move(*sealed)});
  }
  co_return out;
}

void E2b::add_egress_routes(Router& router) {
  Route route;
  route.method = "PUT";
  route.pattern = "/sandboxes/{id}/network";
  route.dialect = Dialect::e2b;
  route.permission = Permission::write;
  route.handler = [this](Call& call) { return set_network(call); };
  router.add(std::move(route));
}

/// Replaces all that was said about outgoing traffic; what is said about visitors stays. Answers
/// when it is in force on live connections, too.
async::Task<Reply> E2b::set_network(Call& call) {
  auto row = co_await visible(call);
  if (!row) co_return base::passing(row);
  Wipe const wipe_body{call.body};
  auto update = decode_body<NetworkUpdate>(call);
  if (!update) co_return base::passing(update);
  auto secrets = take_header_rules(update->rules);
  if (!secrets) co_return base::passing(secrets);
  if (present(update->egressProxy)) co_return error_reply(501, no_proxy);
  NewSandbox asked;
  asked.allow_internet_access = update->allow_internet_access;
  json::object lists;
  if (update->allowOut) lists["allowOut"] = wire::encode(*update->allowOut);
  if (update->denyOut) lists["denyOut"] = wire::encode(*update->denyOut);
  if (update->rules.is_object()) lists["rules"] = std::move(update->rules);
  if (!lists.empty()) asked.network = std::move(lists);
  auto kept = network_of(asked, row->secure);
  if (!kept) co_return base::passing(kept);
  auto const policy = egress_of(*kept);
  auto& network = service_.network();
  auto sealed = co_await seal(std::move(*secrets), call.deadline);
  if (!sealed) co_return base::passing(sealed);
  auto of = controlplane::network_of(*row);
  of.brought = *sealed;
  auto checked = co_await network.check_own(std::move(of), policy, call.deadline);
  if (!checked) co_return base::passing(checked);
  json::object merged;
  if (kept->is_object()) merged = kept->get_object();
  if (auto const* before = row->network.if_object()) {
    for (auto const* of_visitors : {"allowPublicTraffic", "maskRequestHost"})
      if (auto const* value = before->if_contains(of_visitors)) merged[of_visitors] = *value;
  }
  auto noted = co_await store_.policies.note_network(row->id, std::move(merged), call.deadline);
  if (!noted) co_return base::passing(noted);
  auto replaced = co_await store_.credentials.replace_of_sandbox(
      row->public_id, std::move(*sealed), call.deadline);
  if (!replaced) co_return base::passing(replaced);
  auto put = co_await store_.policies.put(
      {"sandbox", row->public_id, wire::encode(policy), call.owner.key_public_id, {}},
      call.deadline);
  if (!put) co_return base::passing(put);
  auto applied = co_await network.enforce_under("sandbox", row->public_id, call.deadline);
  if (!applied) co_return base::passing(applied);
  for (auto const& one : *applied)
    if (one.failed)
      co_return error_reply(500, "the network settings are kept but not in force: " + one.note);
  co_return empty_reply(204);
}

}  // namespace controlplane::e2b
