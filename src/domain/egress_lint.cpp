#include "domain/credential_profiles.hpp"
#include "domain/egress_policy.hpp"

#include <set>

namespace domain {
namespace {

constexpr std::size_t pairs_max = 100'000;

// Suffixes under which strangers can have a name of their own: a wildcard over one admits all of
// them.
constexpr std::string_view hosting_suffixes[] = {
    "github.io",
    "gitlab.io",
    "workers.dev",
    "pages.dev",
    "netlify.app",
    "vercel.app",
    "herokuapp.com",
    "amazonaws.com",
    "s3.amazonaws.com",
    "cloudfront.net",
    "azurewebsites.net",
    "blob.core.windows.net",
    "web.app",
    "firebaseapp.com",
    "appspot.com",
    "run.app",
    "fly.dev",
    "onrender.com",
    "ngrok.io",
    "ngrok-free.app",
    "trycloudflare.com",
    "r2.dev",
    "co.uk",
};

bool covers(std::string const& wide, std::string const& narrow) {
  if (wide == "*" || wide == narrow) return true;
  return wide.starts_with("*.") && narrow.size() > wide.size() - 1 &&
         narrow.ends_with(wide.substr(1));
}

bool shadows(wire::PolicyRule const& deny, wire::PolicyRule const& allow) {
  if (deny.action != wire::RuleAction::deny || deny.http || !deny.ports.empty()) return false;
  return std::ranges::all_of(allow.hosts, [&](auto const& host) {
    return std::ranges::any_of(deny.hosts, [&](auto const& wide) { return covers(wide, host); });
  });
}

/// Could the rule's paths be the endpoint's? Globs are compared by their literal beginnings, which
/// may say too much, never too little.
bool may_meet(std::string_view glob, std::string_view endpoint) {
  if (path_matches(endpoint, glob) || path_matches(glob, endpoint)) return true;
  auto const literal = glob.substr(0, glob.find('*'));
  bool const deep = glob.find("**") != std::string_view::npos;
  return deep && endpoint.starts_with(literal);
}

void lint_minting(wire::PolicyRule const& rule, std::vector<std::string>& out) {
  if (rule.inject.empty() || rule.action != wire::RuleAction::allow) return;
  for (auto const& one : minting_for(rule.hosts, "")) {
    bool const method =
        !rule.http || one.method.empty() || rule.http->methods.empty() ||
        std::ranges::find(rule.http->methods, one.method) != rule.http->methods.end();
    bool const path = !rule.http || rule.http->paths.empty() ||
                      std::ranges::any_of(rule.http->paths, [&](std::string const& glob) {
                        return may_meet(glob, one.path);
                      });
    bool const denied =
        rule.http && std::ranges::any_of(rule.http->deny_paths, [&](auto const& glob) {
          return glob == one.path || path_matches(glob, one.path);
        });
    if (!method || !path || denied) continue;
    out.push_back(fmt::format(
        "rule {}: allows {} {}, where new credentials are given out; with a credential it is "
        "refused whatever the rule says, so name the paths it is for, or deny this one",
        rule.id,
        one.method.empty() ? "any method at" : one.method,
        one.path));
    return;  // one says enough
  }
}

void lint_rule(wire::PolicyRule const& rule, std::vector<std::string>& out) {
  for (auto const& host : rule.hosts) {
    if (host == "*" && rule.action == wire::RuleAction::allow) {
      out.push_back(fmt::format(
          "rule {}: `*` allows every host; say posture: open if that is meant", rule.id));
    }
    for (auto const suffix : hosting_suffixes) {
      if (host == "*." + std::string(suffix) && rule.action == wire::RuleAction::allow) {
        out.push_back(fmt::format(
            "rule {}: anybody can have a name below {}: data can leave to a stranger's account",
            rule.id,
            suffix));
      }
    }
  }
  if (rule.tls == wire::RuleTls::passthrough) {
    out.push_back(
        fmt::format("rule {}: passthrough means no Host check, no methods, no paths, no "
                    "credentials; on a shared front "
                    "another site can be reached",
                    rule.id));
  }
  if (!rule.inject.empty() && (!rule.http || rule.http->paths.empty())) {
    out.push_back(fmt::format(
        "rule {}: the credential is sent on every path of the host; name the paths it is for",
        rule.id));
  }
  if (!rule.inject.empty() && rule.guest_auth == wire::GuestAuth::keep) {
    out.push_back(fmt::format(
        "rule {}: guest_auth: strip keeps the guest from using an account of its own there",
        rule.id));
  }
  if (rule.limits && rule.limits->requests_per_s == 0U)
    out.push_back(fmt::format("rule {}: limits.requests_per_s 0 admits no request", rule.id));
  lint_minting(rule, out);
}

}  // namespace

std::vector<std::string> lint(wire::Policy const& policy) {
  std::vector<std::string> out;
  std::vector<wire::PolicyRule const*> denials;
  for (auto const& rule : policy.rules)
    if (rule.action == wire::RuleAction::deny) denials.push_back(&rule);
  // Each with each: a text may have thousands of both, and whoever asks is waited for.
  bool const few = denials.size() * policy.rules.size() <= pairs_max;
  std::set<std::string> ids;
  for (auto const& rule : policy.rules) {
    if (!rule.id.empty() && !ids.insert(rule.id).second)
      out.push_back(fmt::format("rule {}: the id is used twice", rule.id));
    lint_rule(rule, out);
    if (rule.action != wire::RuleAction::allow) continue;
    for (auto const* other : denials)
      if (few && shadows(*other, rule))
        out.push_back(fmt::format(
            "rule {}: never allows anything, rule {} denies its hosts", rule.id, other->id));
  }
  if (!few) out.emplace_back("too many deny rules to look for allow rules that they hide");
  if (!policy.cidr.allow.empty())
    out.emplace_back(
        "cidr.allow: these networks are opened for TCP alone; UDP stays closed whatever a policy "
        "says, except to port 53, which the platform answers itself");
  if (policy.budgets.requests_per_s == 0 || policy.budgets.host_requests_per_s == 0U)
    out.emplace_back(
        "budgets: with 0 requests_per_s or host_requests_per_s no request is admitted");
  if (policy.budgets.host_requests_per_s.value_or(0) > policy.budgets.requests_per_s)
    out.emplace_back(
        "budgets: host_requests_per_s has no effect above requests_per_s, which is for all hosts "
        "together");
  if (policy.posture == wire::Posture::blocked && !policy.rules.empty()) {
    out.push_back("posture blocked: the rules have no effect; posture allowlist makes them count");
  }
  return out;
}

std::vector<std::string> diff(wire::Policy const& before, wire::Policy const& after) {
  std::vector<std::string> out;
  auto const text_of = [](wire::Policy const& policy) {
    std::map<std::string, std::string> by_id;
    for (auto const& rule : policy.rules)
      by_id[rule.id.empty() ? wire::encode_text(rule.hosts) : rule.id] = wire::encode_text(rule);
    return by_id;
  };
  auto const old_rules = text_of(before);
  auto const new_rules = text_of(after);
  for (auto const& [id, text] : old_rules) {
    auto const now = new_rules.find(id);
    if (now == new_rules.end()) {
      out.push_back(fmt::format("- rule {}", id));
    } else if (now->second != text) {
      out.push_back(fmt::format("~ rule {}", id));
    }
  }
  for (auto const& [id, text] : new_rules)
    if (!old_rules.contains(id)) out.push_back(fmt::format("+ rule {}", id));
  auto const field = [&](std::string_view name, std::string const& was, std::string const& is) {
    if (was != is) out.push_back(fmt::format("~ {}: {} -> {}", name, was, is));
  };
  field("posture", wire::encode_text(before.posture), wire::encode_text(after.posture));
  field("binding", wire::encode_text(before.binding), wire::encode_text(after.binding));
  field("cidr", wire::encode_text(before.cidr), wire::encode_text(after.cidr));
  field("budgets", wire::encode_text(before.budgets), wire::encode_text(after.budgets));
  return out;
}

}  // namespace domain
