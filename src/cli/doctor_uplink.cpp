// How sandboxes reach the world: is the way there, are our rules exactly ours, and what of this
// host's own stands in it.

#include "cli/doctor.hpp"
#include "cli/supervisor.hpp"
#include "hostd/uplink.hpp"
#include "hostd/uplink_rules.hpp"
#include "os/host_resolvers.hpp"
#include "os/text_file.hpp"
#include "wire/codec.hpp"

#include <net/if.h>
#include <sys/stat.h>

#include <sstream>

#include <unistd.h>

namespace cli {
namespace {

constexpr char name[] = "way out";
constexpr std::size_t ruleset_bytes_max = 16U << 20U;

Finding broken(std::string proof, std::string follows, std::string fix) {
  return {name, Health::broken, std::move(proof), std::move(follows), std::move(fix)};
}

std::string text_at(wire::json::object const& object, char const* key) {
  auto const* value = object.if_contains(key);
  return value != nullptr && value->is_string() ? std::string(value->get_string()) : std::string();
}

struct Chain {
  std::string family, table, chain;

  explicit Chain(wire::json::object const& from, char const* chain_key)
      : family(text_at(from, "family")),
        table(text_at(from, "table")),
        chain(text_at(from, chain_key)) {}

  friend bool operator==(Chain const&, Chain const&) = default;
};

/// Counts and says no, and asks for nothing before.
bool refuses_everything(wire::json::object const& rule) {
  auto const* steps = rule.if_contains("expr");
  if (steps == nullptr || !steps->is_array()) return false;
  bool refuses = false;
  for (auto const& step : steps->get_array()) {
    if (!step.is_object()) return false;
    auto const& object = step.get_object();
    if (object.contains("counter") || object.contains("log")) continue;
    if (!object.contains("drop") && !object.contains("reject")) return false;
    refuses = true;
  }
  return refuses;
}

std::string fix_of(Chain const& where, std::string const& link) {
  if (where.table == "filter" && where.chain == "FORWARD" && !find_program("iptables").empty())
    return fmt::format("iptables -I FORWARD -i {0} -j ACCEPT; iptables -I FORWARD -o {0} -j ACCEPT",
                       link);
  auto const chain = fmt::format("{} {} {}", where.family, where.table, where.chain);
  return fmt::format(
      "nft insert rule {0} iifname {1} accept; nft insert rule {0} oifname {1} accept",
      chain,
      link);
}

std::optional<std::string> listed(std::vector<std::string> arguments) {
  auto done = run_checked(std::move(arguments));
  if (!done) return std::nullopt;
  return std::move(*done);
}

/// The kernel's list of a table, and the list that the same kernel makes of the rules as they
/// should be, loaded into a namespace that ends with the question: both have one way of writing.
bool is_exactly(std::optional<std::string> const& actual,
                std::string const& rules,
                std::string const& table) {
  auto const wanted = listed({find_program("unshare"),
                              "--net",
                              "--",
                              find_program("sh"),
                              "-c",
                              R"("$1" "$2" && exec "$1" -s list table inet "$3")",
                              "sh",
                              find_program("nft"),
                              rules,
                              table});
  return actual && wanted && *actual == *wanted;
}

bool has_default_route() {
  std::istringstream lines(os::read_text("/proc/thread-self/net/route").value_or(""));
  std::string line, link, destination;
  std::getline(lines, line);
  while (std::getline(lines, line)) {
    std::istringstream words(line);
    if (words >> link >> destination && destination == "00000000") return true;
  }
  return false;
}

Finding probe_namespace(wire::Config const& config) {
  struct stat info{};
  if (::stat(config.uplink.c_str(), &info) != 0)
    return broken("there is no network namespace " + config.uplink,
                  "sandboxes with a policy cannot start",
                  "ip netns add NAME; space up --uplink /run/netns/NAME");
  return {name,
          Health::ok,
          "gateways live in the network namespace " + config.uplink,
          "what it lets through is up to whoever made it",
          ""};
}

/// What of this installation's own is missing or changed.
std::optional<Finding> wrong_with_ours(wire::Config const& config, hostd::UplinkPlan const& plan) {
  auto const again = "space down; space up";
  if (::if_nametoindex(plan.link.c_str()) == 0)
    return broken("the link " + plan.link + " is gone", "no sandbox gets out", again);
  auto const nft = find_program("nft");
  if (!is_exactly(listed({nft, "-s", "list", "table", "inet", plan.table}),
                  hostd::uplink_host_rules(plan),
                  plan.table))
    return broken(fmt::format("somebody changed the table inet {}", plan.table),
                  "sandboxes get out of this host by other rules than ours",
                  again);
  auto const inside = "--net=" + hostd::uplink_path(config);
  if (!is_exactly(listed({find_program("nsenter"),
                          inside,
                          "--",
                          nft,
                          "-s",
                          "list",
                          "table",
                          "inet",
                          "uplink"}),
                  hostd::uplink_inner_rules(plan),
                  "uplink"))
    return broken("somebody changed the rules of " + hostd::uplink_path(config),
                  "what gateways may reach is not what was configured",
                  again);
  return std::nullopt;
}

std::optional<Finding> wrong_with_host(hostd::UplinkPlan const& plan) {
  if (!os::read_text("/proc/sys/net/ipv4/ip_forward").value_or("").starts_with('1'))
    return broken("somebody turned net.ipv4.ip_forward off",
                  "no sandbox gets out",
                  "sysctl -w net.ipv4.ip_forward=1");
  auto const rules = listed({find_program("nft"), "-j", "list", "ruleset"});
  auto const blockers = forward_blockers(rules.value_or(""), plan.link);
  if (!blockers.empty())
    return broken(fmt::format("another program's chain {} refuses what this host forwards",
                              blockers.front().chain),
                  "no sandbox gets out",
                  blockers.front().fix);
  // The older kind of rules is invisible to nft.
  auto const legacy = find_program("iptables-legacy");
  bool const uses_legacy =
      os::read_text("/proc/net/ip_tables_names").value_or("").find("filter") != std::string::npos;
  auto const forward =
      legacy.empty() || !uses_legacy ? std::nullopt : listed({legacy, "-S", "FORWARD"});
  if (forward && forward->starts_with("-P FORWARD DROP") &&
      forward->find(plan.link) == std::string::npos)
    return broken("another program's FORWARD policy is DROP (iptables-legacy)",
                  "no sandbox gets out",
                  fmt::format("iptables-legacy -I FORWARD -i {0} -j ACCEPT; iptables-legacy -I "
                              "FORWARD -o {0} -j ACCEPT",
                              plan.link));
  return std::nullopt;
}

Finding probe_host_uplink(wire::Config const& config) {
  if (geteuid() != 0)
    return {name, Health::degraded, "not looked at: it takes root", "", "sudo space doctor"};
  auto const resolvers = config.resolvers.empty() ? os::host_resolvers() : config.resolvers;
  auto const number = hostd::standing_uplink(config);
  if (!number)
    return {name,
            read_supervisor(config) ? Health::broken : Health::degraded,
            "the link to the gateways' namespace does not stand",
            "it is made when the platform starts",
            read_supervisor(config) ? "space down; space up" : "space up"};
  auto const plan = hostd::plan_uplink(config, resolvers, *number);
  if (!plan) return broken(plan.error().message(), "no sandbox gets out", "space up --help");
  if (auto wrong = wrong_with_ours(config, *plan)) return std::move(*wrong);
  if (auto wrong = wrong_with_host(*plan)) return std::move(*wrong);
  if (plan->resolvers.empty())
    return broken("this host names no DNS server that another namespace could ask",
                  "names cannot be looked up for sandboxes",
                  "space down; space up --resolver ADDRESS");
  if (!has_default_route())
    return {name,
            Health::degraded,
            "this host has no default route",
            "sandboxes reach no further than this host does",
            ""};
  Finding finding{.what = name};
  finding.proof = fmt::format(
      "{} stands, with exactly our rules on both sides, for IPv4 alone; DNS is asked at {}",
      plan->link,
      fmt::join(plan->resolvers, ", "));
  if (listed({find_program("nft"), "list", "table", "inet", "space_guard"}))
    finding.follows =
        "forwarding was off before: it is on for sandboxes only, everything else stays refused "
        "(table inet space_guard)";
  return finding;
}

}  // namespace

std::vector<Blocker> forward_blockers(std::string const& ruleset, std::string const& link) {
  auto const parsed = wire::parse_json(ruleset, ruleset_bytes_max);
  if (!parsed || !parsed->is_object()) return {};
  auto const* all = parsed->get_object().if_contains("nftables");
  if (all == nullptr || !all->is_array()) return {};
  std::vector<Chain> forwarding;
  std::vector<Chain> refusing;
  std::vector<std::string> tables_that_know_us;
  for (auto const& entry : all->get_array()) {
    if (!entry.is_object()) continue;
    auto const& object = entry.get_object();
    if (auto const* chain = object.if_contains("chain"); chain != nullptr && chain->is_object()) {
      auto const& made = chain->get_object();
      Chain const where(made, "name");
      bool const ours = where.family == "inet" && where.table.starts_with("space_");
      if (text_at(made, "hook") != "forward" || ours || where.family == "ip6") continue;
      forwarding.push_back(where);
      if (text_at(made, "policy") == "drop") refusing.push_back(where);
    }
    if (auto const* rule = object.if_contains("rule"); rule != nullptr && rule->is_object()) {
      Chain const where(rule->get_object(), "chain");
      if (wire::to_text(*rule).find('"' + link + '"') != std::string::npos)
        tables_that_know_us.push_back(where.family + where.table);
      bool const forwards = std::ranges::find(forwarding, where) != forwarding.end();
      if (forwards && refuses_everything(rule->get_object())) refusing.push_back(where);
    }
  }
  std::vector<Blocker> found;
  for (auto const& where : refusing) {
    auto const known = std::ranges::find(tables_that_know_us, where.family + where.table);
    if (known != tables_that_know_us.end()) continue;
    found.push_back(
        {fmt::format("{} {} {}", where.family, where.table, where.chain), fix_of(where, link)});
  }
  return found;
}

Finding probe_uplink(wire::Config const& config) {
  if (config.uplink == "none")
    return {name,
            Health::ok,
            "none: sandboxes reach nothing outside, their packets end on this host",
            "",
            "space down; space up --uplink host"};
  auto const unwatched = config.run_dir + "/hostd/rules-unwatched";
  if (::access(unwatched.c_str(), F_OK) == 0)
    return {name,
            Health::degraded,
            unwatched + " is there",
            "nobody looks whether somebody changes the packet rules",
            "rm " + unwatched};
  if (config.uplink == "host") return probe_host_uplink(config);
  return probe_namespace(config);
}

}  // namespace cli
