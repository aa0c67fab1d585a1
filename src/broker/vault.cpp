#include "broker/vault.hpp"

#include "base/base64.hpp"
#include "broker/aead.hpp"
#include "domain/credential_profiles.hpp"
#include "domain/egress_policy.hpp"

#include <set>

namespace broker {
namespace {

using base::Code;

constexpr std::size_t value_bytes_max = 16 * 1024;
/// Each use looks at all of them.
constexpr std::size_t paths_bytes_max = 8 * 1024;
constexpr std::uint32_t lease_seconds_max = 900;
constexpr std::size_t leases_max = 64 * 1024;
/// Of one gateway: the sandboxes of one tenant must not take the places of all others.
constexpr std::size_t gateway_leases_max = 320;
constexpr std::size_t levels_max = 8;

/// What a ciphertext is bound to.
std::string context_of(std::string_view id,
                       std::uint32_t version,
                       wire::CredentialBinding const& binding,
                       std::string_view key_id) {
  return fmt::format("{}\n{}\n{}\n{}", id, version, wire::encode_text(binding), key_id);
}

bool is_header_name(std::string_view name) {
  if (name.empty() || name.size() > 64) return false;
  return std::ranges::all_of(name, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-';
  });
}

bool is_header_value(std::string_view value) {
  return !value.empty() && std::ranges::all_of(value, [](char c) { return c >= 0x20 && c < 0x7f; });
}

wire::SharedBudget budget_of(wire::CredentialBinding const& binding) {
  return {binding.requests_per_s, binding.concurrent, binding.requests_per_day};
}

bool limits(wire::SharedBudget const& budget) {
  return budget.requests_per_s || budget.concurrent || budget.requests_per_day;
}

base::Result<void> check_binding(wire::CredentialBinding const& binding) {
  auto const bad = [](std::string what) {
    return base::fail(Code::invalid_argument, std::move(what));
  };
  if (binding.hosts.empty())
    return bad("binding.hosts must not be empty: a credential goes to named hosts only");
  for (auto const& host : binding.hosts) {
    auto const name = domain::HostName::parse(host);
    if (!name || name->str() != host)
      return bad(fmt::format("binding.hosts: \"{}\" is not an exact lower-case host name", host));
  }
  if (!is_header_name(binding.header)) return bad("binding.header is not a header name");
  if (binding.form != "header" && binding.form != "bearer" && binding.form != "basic" &&
      binding.form != "plain")
    return bad("binding.form: header, bearer, basic or plain");
  if (binding.form == "basic" && binding.username.find(':') != std::string::npos)
    return bad("binding.username must not have a colon");
  if (auto const wrong = budget_of(binding).check(); !wrong.empty()) return bad("binding." + wrong);
  std::size_t paths = 0;
  for (auto const& path : binding.paths) {
    if (!path.starts_with('/') || path.size() > domain::path_glob_bytes_max)
      return bad("binding.paths begin with '/' and have at most 1024 bytes");
    paths += path.size();
  }
  if (paths > paths_bytes_max) return bad("binding.paths have at most 8192 bytes together");
  return {};
}

std::string header_value(wire::CredentialBinding const& binding, std::string const& value) {
  if (binding.form == "bearer") return "Bearer " + value;
  if (binding.form == "basic") return "Basic " + base::base64_of(binding.username + ":" + value);
  return value;
}

bool fits(wire::CredentialBinding const& binding, wire::Use const& request) {
  if (request.scheme != "https") return false;
  if (std::ranges::find(binding.hosts, request.host) == binding.hosts.end()) return false;
  if (binding.ports.empty() ? request.port != 443
                            : std::ranges::find(binding.ports, request.port) == binding.ports.end())
    return false;
  if (!binding.methods.empty() &&
      std::ranges::find(binding.methods, request.method) == binding.methods.end())
    return false;
  if (request.method == "TRACE" || request.method == "TRACK" || request.method == "CONNECT")
    return false;
  if (binding.paths.empty()) return true;
  if (domain::is_ambiguous_path(request.path)) return false;
  auto const plain = domain::plain_path(request.path);
  return std::ranges::any_of(binding.paths, [&](auto const& glob) {
    return domain::path_matches(glob, request.path) && domain::path_matches(glob, plain);
  });
}

/// Whatever binding and policy say: what is given out there would be the guest's to keep.
bool is_minting(wire::CredentialBinding const& binding, wire::Use const& request) {
  return binding.deny && domain::is_endpoint_of(*binding.deny, request.method, request.path);
}

wire::Used refused(std::string_view code, std::string message) {
  wire::Used out;
  out.code = code;
  out.message = std::move(message);
  return out;
}

wire::Used exhausted(std::string_view who, Ledger::Verdict const& verdict) {
  auto out = refused("exhausted", fmt::format("{} is used {}", who, verdict.why));
  out.later_s = verdict.later_s;
  return out;
}

std::vector<std::string> split(std::string_view list) {
  std::vector<std::string> out;
  for (auto comma = list.find(','); comma != std::string_view::npos; comma = list.find(',')) {
    out.emplace_back(list.substr(0, comma));
    list.remove_prefix(comma + 1);
  }
  out.emplace_back(list);
  return out;
}

/// Those that are counted until their request is over.
void note_held(std::span<Ledger::Account const> accounts,
               wire::Used& used,
               std::vector<std::string>* held) {
  for (auto const& account : accounts) {
    if (!account.budget.concurrent) continue;
    used.held = true;
    if (held) held->push_back(account.id);
  }
}

}  // namespace

base::Result<wire::Sealed> Vault::seal(wire::Seal const& request) const {
  if (auto checked = check_binding(request.binding); !checked) return base::passing(checked);
  if (request.value.size() > value_bytes_max)
    return base::fail(Code::too_large, "a credential has at most 16 KiB");
  if (!is_header_value(request.value))
    return base::fail(Code::invalid_argument, "a credential is visible ASCII without line ends");
  wire::Sealed sealed;
  sealed.credential = request.credential;
  sealed.version = request.version;
  sealed.binding = request.binding;
  sealed.key_id = keys_.key_id();
  auto const context = context_of(sealed.credential, sealed.version, sealed.binding, sealed.key_id);
  auto const data_key = random_key();
  auto ciphertext = encrypt(data_key, request.value, context);
  if (!ciphertext) return base::passing(ciphertext);
  auto wrapped = keys_.wrap(data_key, context);
  if (!wrapped) return base::passing(wrapped);
  sealed.ciphertext = to_hex(*ciphertext);
  sealed.wrapped_key = to_hex(*wrapped);
  return sealed;
}

base::Result<Vault::Entry> Vault::open(wire::Lease const& request) const {
  auto const& sealed = request.sealed;
  Entry entry;
  entry.sandbox = request.sandbox;
  entry.id = sealed.credential;
  entry.version = sealed.version;
  entry.not_after = clock_.in(std::chrono::seconds(request.seconds));
  bool const is_budget = request.name.starts_with(wire::budget_lease_name(""));
  // A credential of such a name would be found where a budget is asked for, and the other way
  // round.
  if (is_budget != request.budget.has_value() || is_budget != entry.id.starts_with("budget:"))
    return base::fail(Code::invalid_argument, "a budget's name and id begin with budget:");
  if (request.budget) {
    entry.budget = request.budget;
    return entry;
  }
  auto wrapped = from_hex(sealed.wrapped_key);
  if (!wrapped) return base::passing(wrapped, "wrapped_key");
  auto ciphertext = from_hex(sealed.ciphertext);
  if (!ciphertext) return base::passing(ciphertext, "ciphertext");
  auto const context = context_of(sealed.credential, sealed.version, sealed.binding, sealed.key_id);
  auto data_key = keys_.unwrap(*wrapped, sealed.key_id, context);
  if (!data_key) return base::passing(data_key, "open the credential's key");
  auto value = decrypt(*data_key, *ciphertext, context);
  if (!value) return base::passing(value, "open the credential");
  entry.binding = sealed.binding;
  entry.value = std::move(*value);
  return entry;
}

base::Result<void> Vault::lease(wire::Lease const& request) {
  drop_expired();
  if (request.seconds == 0 || request.seconds > lease_seconds_max)
    return base::fail(Code::invalid_argument, "a lease lasts 1 to 900 seconds");
  if (request.gateway_uid == 0)
    return base::fail(Code::invalid_argument, "a lease needs the gateway's user id");
  // One that is renewed takes no new place.
  if (!leases_.contains({request.gateway_uid, request.name})) {
    auto const first = leases_.lower_bound({request.gateway_uid, {}});
    auto const end = leases_.lower_bound({request.gateway_uid + 1, {}});
    bool const many = std::distance(first, end) >= std::ptrdiff_t{gateway_leases_max};
    if (many || leases_.size() >= leases_max)
      return base::fail(Code::exhausted,
                        many ? "too many leases of one gateway" : "too many leases");
  }
  auto entry = open(request);
  if (!entry) return base::passing(entry);
  first_ends_ = std::min(first_ends_, entry->not_after);
  leases_.insert_or_assign({request.gateway_uid, request.name}, std::move(*entry));
  return {};
}

void Vault::end_leases(std::string_view sandbox, std::string_view name) {
  std::erase_if(leases_, [&](auto const& pair) {
    return pair.second.sandbox == sandbox && (name.empty() || pair.first.second == name);
  });
}

void Vault::end_leases_of(std::uint32_t gateway_uid) {
  std::erase_if(leases_, [&](auto const& pair) { return pair.first.first == gateway_uid; });
}

wire::Used Vault::use(std::uint32_t uid, wire::Use const& request, std::vector<std::string>* held) {
  if (request.scheme == wire::budget_scheme) return use_budgets(uid, request, held);
  drop_expired();
  auto const found = leases_.find({uid, request.credential});
  if (found == leases_.end() || found->second.budget)
    return refused("not_found", "no live lease for that credential");
  auto const& entry = found->second;
  if (!fits(entry.binding, request))
    return refused("denied", "the credential is not bound to this request");
  if (is_minting(entry.binding, request))
    return refused("denied",
                   "this endpoint gives out new credentials, which a sandbox must not get");
  wire::Used out;
  // Whichever sandbox it is for: there is one vault on a node.
  std::array const account{Ledger::Account{entry.id, budget_of(entry.binding)}};
  if (limits(account.front().budget)) {
    auto const verdict = ledger_.admit(account);
    if (!verdict.admitted) return exhausted("the credential", verdict);
    note_held(account, out, held);
  }
  out.ok = true;
  out.plain = entry.binding.form == "plain";
  out.header = entry.binding.header;
  out.value = header_value(entry.binding, entry.value.reveal());
  out.id = entry.id;
  out.version = entry.version;
  return out;
}

/// One that was not leased is not one without a limit.
wire::Used Vault::use_budgets(std::uint32_t uid,
                              wire::Use const& request,
                              std::vector<std::string>* held) {
  drop_expired();
  auto const levels = split(request.credential);
  // Who asks may have been taken over: each level once, and no more than there can be.
  if (std::set(levels.begin(), levels.end()).size() != levels.size() || levels.size() > levels_max)
    return refused("denied", "not a list of levels");
  std::vector<Ledger::Account> accounts;
  for (auto const& level : levels) {
    auto const found = leases_.find({uid, wire::budget_lease_name(level)});
    if (found == leases_.end() || !found->second.budget)
      return refused("not_found", "no live lease for that budget");
    accounts.push_back({found->second.id, *found->second.budget});
  }
  auto const verdict = ledger_.admit(accounts);
  if (!verdict.admitted) {
    auto const& level = levels.at(verdict.refused_by);
    auto out = exhausted(fmt::format("what all sandboxes of the {} have together", level), verdict);
    out.id = level;
    return out;
  }
  wire::Used out;
  out.ok = true;
  note_held(accounts, out, held);
  return out;
}

void Vault::release(std::vector<std::string> const& held) {
  for (auto const& id : held)
    ledger_.release(id);
}

void Vault::drop_expired() {
  auto const now = clock_.steady_now();
  if (now < first_ends_) return;
  std::erase_if(leases_, [&](auto const& pair) { return pair.second.not_after <= now; });
  first_ends_ = base::Deadline::max();
  for (auto const& [key, entry] : leases_)
    first_ends_ = std::min(first_ends_, entry.not_after);
}

}  // namespace broker
