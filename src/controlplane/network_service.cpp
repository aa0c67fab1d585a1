#include "controlplane/network_service.hpp"

#include "base/log.hpp"
#include "domain/egress_policy.hpp"

namespace controlplane {
namespace {

using base::Code;

constexpr int attempts_max = 4;
// What a worker takes is 8 MiB, credentials and the rest of a start with it.
constexpr std::size_t policy_bytes_max = 6 << 20;
// Of one sandbox, of which a broker keeps the places and a worker takes the bytes. Whose name comes
// after them cannot be used.
constexpr std::size_t credentials_max = 256;
constexpr std::size_t credential_bytes_max = 3 << 19;
constexpr std::chrono::milliseconds moving_pause{200};
constexpr std::chrono::seconds recent{300};

/// Starts and restores look at what is stored once more at their end (catch_up()).
bool gets_it_before_it_runs(domain::SandboxState state) {
  using enum domain::SandboxState;
  return state == creating || state == suspended || state == restoring;
}

bool gives_network(std::string_view level) {
  return level == "project" || level == "template" || level == "sandbox";
}

/// The stored levels as a gateway gets them.
base::Result<wire::EffectivePolicy> put_together(std::vector<store::PolicyRow> const& rows) {
  wire::EffectivePolicy out;
  bool given = false;
  for (auto const& row : rows) {
    out.generation += row.version;
    if (row.policy.is_null()) continue;
    auto text = wire::decode<wire::Policy>(row.policy);
    // Of a newer version of this program, perhaps. Half a policy is none.
    if (!text) return base::passing(text, fmt::format("the stored policy of level {}", row.level));
    given = given || gives_network(row.level);
    out.levels.push_back({row.level, std::move(*text)});
  }
  if (!given) out.levels.push_back({"sandbox", {}});
  return out;
}

void set_own(std::vector<store::PolicyRow>& rows, std::string sandbox, wire::Policy const& own) {
  if (rows.empty() || rows.back().level != "sandbox") {
    rows.emplace_back();
    rows.back().level = "sandbox";
    rows.back().subject = std::move(sandbox);
  }
  ++rows.back().version;
  rows.back().policy = wire::encode(own);
}

std::string rule_name(wire::PolicyLevel const& level, std::size_t index) {
  auto const& id = level.policy.rules[index].id;
  return id.empty() ? fmt::format("{}-{}", level.level, index + 1) : id;
}

/// What all sandboxes under a level may do together is leased like a credential: so it comes and
/// goes with its policy, whatever becomes of gateway, worker and broker.
void add_budgets(NetworkPlan& plan, std::string const& sandbox) {
  for (auto const& row : plan.levels) {
    auto const level = std::ranges::find(plan.policy.levels, row.level, &wire::PolicyLevel::level);
    if (row.policy.is_null() || level == plan.policy.levels.end()) continue;
    auto const& together = level->policy.budgets.together;
    if (!together) continue;
    wire::Lease lease;
    lease.sandbox = sandbox;
    lease.name = wire::budget_lease_name(row.level);
    lease.sealed.credential = fmt::format("{}:{}:{}", wire::budget_scheme, row.level, row.subject);
    lease.sealed.version = static_cast<std::uint32_t>(row.version);
    lease.budget = *together;
    plan.credentials.push_back(std::move(lease));
  }
}

/// What a plan's credentials take of what they may.
struct Taken {
  std::size_t count = 0;
  std::size_t bytes = 0;
};

/// False when it has as many as it may have.
bool add_lease(NetworkPlan& plan,
               Taken& taken,
               std::string const& sandbox,
               std::string name,
               wire::Sealed sealed) {
  auto const bytes = wire::encode_text(sealed).size();
  if (taken.count >= credentials_max || taken.bytes + bytes > credential_bytes_max) return false;
  ++taken.count;
  taken.bytes += bytes;
  wire::Lease lease;
  lease.sandbox = sandbox;
  lease.name = std::move(name);
  lease.sealed = std::move(sealed);
  plan.credentials.push_back(std::move(lease));
  return true;
}

constexpr auto too_many_credentials = "the policies over this sandbox name too many credentials";

/// What is in force where the stored levels cannot be: nothing. What a level takes away must not
/// wait for a text beside it that is too long: that one's author would choose what he obeys.
NetworkPlan nothing_of(std::vector<store::PolicyRow> const& rows, std::string why) {
  NetworkPlan out;
  for (auto const& row : rows)
    out.policy.generation += row.version;
  out.policy.levels.push_back({"sandbox", {}});
  out.troubles.push_back({"sandbox", "", std::move(why)});
  return out;
}

bool is_nothing(NetworkPlan const& plan) {
  return plan.levels.empty() && !plan.troubles.empty();
}

std::set<std::string> names_in(wire::EffectivePolicy const& policy) {
  std::set<std::string> names;
  for (auto const& level : policy.levels)
    for (auto const& rule : level.policy.rules)
      for (auto const& one : rule.inject)
        names.insert(one.credential);
  return names;
}

bool same_leases(std::vector<wire::Lease> const& left, std::vector<wire::Lease> const& right) {
  return std::ranges::equal(left, right, [](wire::Lease const& a, wire::Lease const& b) {
    return a.name == b.name && a.sealed.credential == b.sealed.credential &&
           a.sealed.version == b.sealed.version;
  });
}

}  // namespace

NetworkOf network_of(store::SandboxRow const& row) {
  return {row.project_id, row.project_public_id, row.template_public_id, row.public_id, {}};
}

std::string why_not_granted(store::CredentialRow const& credential,
                            std::string_view project_public_id,
                            std::string_view sandbox) {
  if (credential.state != "active") return fmt::format("it is {}", credential.state);
  auto const has = [](std::vector<std::string> const& list, std::string_view one) {
    return std::ranges::find(list, one) != list.end();
  };
  if (credential.project_public_id.empty()) {
    bool const granted =
        credential.grants && (has(credential.grants->projects, "*") ||
                              has(credential.grants->projects, project_public_id) ||
                              has(credential.grants->sandboxes, sandbox));
    return granted ? "" : "it is the organisation's and not granted to this project";
  }
  bool const limited = credential.grants && !credential.grants->sandboxes.empty();
  if (limited && !has(credential.grants->sandboxes, sandbox))
    return "it is granted to other sandboxes only";
  return {};
}

NetworkService::NetworkService(asio::any_io_executor executor,
                               store::Store& store,
                               WorkerClient& workers,
                               Options options)
    : executor_(executor),
      store_(store),
      workers_(workers),
      options_(options),
      work_(std::move(executor)) {}

NetworkService::~NetworkService() = default;

asio::awaitable<void> NetworkService::close() {
  work_.cancel();
  co_await work_.join();
}

async::Task<NetworkPlan> NetworkService::plan(NetworkOf of,
                                              std::optional<wire::Policy> own,
                                              base::Deadline deadline) {
  auto rows =
      co_await store_.policies.over(of.project_id, of.template_public_id, of.sandbox, deadline);
  if (!rows) co_return base::passing(rows);
  NetworkPlan out;
  out.levels = std::move(*rows);
  if (own) set_own(out.levels, of.sandbox, *own);
  auto policy = put_together(out.levels);
  if (!policy) co_return base::passing(policy);
  out.policy = std::move(*policy);
  auto compiled = domain::EgressPolicy::compile(out.policy);
  if (!compiled) co_return base::passing(compiled, "policy");
  if (wire::encode_text(out.policy).size() > policy_bytes_max)
    co_return base::fail(Code::too_large,
                         "the policies over this sandbox are too long together: at most 6 MiB");
  add_budgets(out, of.sandbox);
  auto added = co_await add_credentials(&out, &of, deadline);
  if (!added) co_return base::passing(added);
  co_return out;
}

async::Task<NetworkPlan> NetworkService::check_own(NetworkOf of,
                                                   wire::Policy own,
                                                   base::Deadline deadline) {
  auto out = co_await plan(std::move(of), std::move(own), deadline);
  if (!out) co_return base::passing(out);
  for (auto const& trouble : out->troubles) {
    if (trouble.level == "sandbox")
      co_return base::fail(Code::invalid_argument,
                           fmt::format("policy: rule {}: {}", trouble.rule, trouble.sentence));
  }
  co_return out;
}

/// Only what the sandbox brought itself has a colon in its name.
async::Task<std::vector<store::SandboxCredential>> NetworkService::brought_along(
    NetworkOf const* of, std::set<std::string> const* names, base::Deadline deadline) {
  bool const any = std::ranges::any_of(
      *names, [](std::string const& name) { return name.find(':') != std::string::npos; });
  if (!any) co_return std::vector<store::SandboxCredential>();
  if (of->brought) co_return *of->brought;
  co_return co_await store_.credentials.of_sandbox(of->sandbox, deadline);
}

/// A name means the nearest credential of that name, whether or not it may be used.
async::Task<void> NetworkService::add_credentials(NetworkPlan* plan,
                                                  NetworkOf const* of,
                                                  base::Deadline deadline) {
  auto const names = names_in(plan->policy);
  if (names.empty()) co_return base::Result<void>();
  auto found =
      co_await store_.credentials.named(of->project_id,
                                        of->template_public_id,
                                        std::vector<std::string>(names.begin(), names.end()),
                                        deadline);
  if (!found) co_return base::passing(found);
  std::map<std::string, std::string> refused;
  std::map<std::string, wire::CredentialBinding> bindings;
  Taken taken;
  for (auto const& name : names)
    refused[name] = "there is no credential of that name";
  for (auto& one : *found) {
    auto const& name = one.row.name;
    bool const nearer_was_there = bindings.contains(name);
    if (nearer_was_there) continue;
    bindings[name] = one.row.binding;
    refused[name] = why_not_granted(one.row, of->project_public_id, of->sandbox);
    if (!refused[name].empty()) continue;
    if (!add_lease(*plan, taken, of->sandbox, name, std::move(one.sealed)))
      refused[name] = too_many_credentials;
  }
  auto brought = co_await brought_along(of, &names, deadline);
  if (!brought) co_return base::passing(brought);
  for (auto& one : *brought) {
    if (!names.contains(one.name)) continue;
    bindings[one.name] = one.sealed.binding;
    bool const added = add_lease(*plan, taken, of->sandbox, one.name, std::move(one.sealed));
    refused[one.name] = added ? "" : too_many_credentials;
  }
  for (auto const& level : plan->policy.levels) {
    for (std::size_t i = 0; i < level.policy.rules.size(); ++i) {
      auto const& rule = level.policy.rules[i];
      for (auto const& [name] : rule.inject) {
        auto const name_of_rule = rule_name(level, i);
        if (!refused[name].empty()) {
          plan->troubles.push_back(
              {level.level,
               name_of_rule,
               fmt::format("credential \"{}\" cannot be used: {}", name, refused[name])});
          continue;
        }
        auto const& hosts = bindings[name].hosts;
        for (auto const& host : rule.hosts) {
          if (std::ranges::find(hosts, host) != hosts.end()) continue;
          plan->troubles.push_back(
              {level.level,
               name_of_rule,
               fmt::format("credential \"{}\" is not bound to {}: requests there would be refused",
                           name,
                           host)});
        }
      }
    }
  }
  co_return base::Result<void>();
}

/// plan() for one that runs. The database that does not answer is no reason for anything.
static async::Task<NetworkPlan> plan_of_live(NetworkService* service,
                                             store::Store* store,
                                             NetworkOf of,
                                             base::Deadline deadline) {
  auto stored = co_await service->plan(of, {}, deadline);
  bool const unfit = !stored && (stored.error().code() == Code::invalid_argument ||
                                 stored.error().code() == Code::too_large);
  if (!unfit) co_return stored;
  auto rows =
      co_await store->policies.over(of.project_id, of.template_public_id, of.sandbox, deadline);
  if (!rows) co_return base::passing(rows);
  co_return nothing_of(*rows, stored.error().message());
}

async::Task<std::optional<Enforced>> NetworkService::enforce_one(store::SandboxRow row,
                                                                 std::string credential) {
  Enforced out;
  out.sandbox = row.public_id;
  auto const deadline = base::system_clock().in(options_.per_sandbox);
  if (!credential.empty()) {
    auto stored = co_await plan_of_live(this, &store_, network_of(row), deadline);
    if (!stored) co_return base::passing(stored);
    bool const concerned = is_nothing(*stored) || names_in(stored->policy).contains(credential);
    if (!concerned) co_return std::optional<Enforced>();
  }
  if (!options_.has_uplink) {
    out.note = offline_note;
    co_return out;
  }
  for (;;) {
    if (gets_it_before_it_runs(row.state)) {
      out.note =
          fmt::format("it is {}; it gets the policy before it runs", domain::name_of(row.state));
      co_return out;
    }
    auto applied = co_await apply_current(row, deadline);
    if (applied) {
      out.in_force = applied->error.empty();
      out.failed = !out.in_force;
      out.note = applied->error;
      out.generation = applied->generation;
      out.connections = applied->connections;
      out.cut = applied->cut;
      co_return out;
    }
    // Between two states, or in its next life already: what it is now decides.
    bool const moving = applied.error().code() == Code::conflict &&
                        base::system_clock().steady_now() + moving_pause < deadline;
    if (!moving) co_return base::passing(applied);
    co_await async::sleep_for(moving_pause);
    auto now = co_await store_.sandboxes.find(row.project_id, row.public_id, deadline);
    if (!now) co_return base::passing(now);
    bool const gone = !*now || domain::is_terminal((*now)->state) ||
                      (*now)->state == domain::SandboxState::deleting;
    if (gone) co_return std::optional<Enforced>();
    row = std::move(**now);
  }
}

/// Until what its worker has is what is stored: a change that came meanwhile is taken along. With
/// an error where what is stored cannot be, and nothing is in its place.
async::Task<wire::GatewayApplied> NetworkService::apply_current(store::SandboxRow row,
                                                                base::Deadline deadline) {
  for (int attempt = 1;; ++attempt) {
    auto wanted = co_await plan_of_live(this, &store_, network_of(row), deadline);
    if (!wanted) co_return base::passing(wanted);
    wire::SetPolicy message{row.epoch, wanted->policy, wanted->credentials};
    auto applied =
        co_await workers_.set_policy(row.node_address, row.public_id, std::move(message), deadline);
    // The gateway has a newer one: somebody else's change was faster.
    bool const outdated = !applied && applied.error().code() == Code::invalid_argument;
    if (!applied && !(outdated && attempt < attempts_max)) co_return base::passing(applied);
    auto now = co_await plan_of_live(this, &store_, network_of(row), deadline);
    if (!now) co_return base::passing(now);
    if (applied && is_nothing(*wanted))
      applied->error = fmt::format("what is stored cannot be in force, so it has no network: {}",
                                   wanted->troubles.front().sentence);
    bool const current = now->policy.generation == wanted->policy.generation &&
                         same_leases(now->credentials, wanted->credentials);
    if (applied && (current || attempt >= attempts_max)) co_return applied;
  }
}

struct NetworkService::FanOut {
  std::vector<store::SandboxRow> rows;
  std::string credential;
  std::vector<std::optional<Enforced>> results;
  std::size_t next = 0;
  std::size_t done = 0;
  async::Signal finished;

  explicit FanOut(asio::any_io_executor executor) : finished(std::move(executor)) {}

  asio::awaitable<void> wait() {
    while (done < rows.size())
      co_await finished.wait();
  }
};

asio::awaitable<void> NetworkService::run(std::shared_ptr<FanOut> work) {
  while (work->next < work->rows.size()) {
    auto const index = work->next++;
    auto one = co_await enforce_one(work->rows[index], work->credential);
    auto& result = work->results[index];
    if (one) {
      result = std::move(*one);
    } else {
      result->note = one.error().message();
      base::log::warn("policy_not_in_force",
                      {{"sandbox", result->sandbox},
                       {"what", one.error().message()},
                       {"detail", one.error().detail()}});
    }
    ++work->done;
    work->finished.notify_all();
  }
}

async::Task<std::vector<Enforced>> NetworkService::enforce(std::vector<store::SandboxRow> rows,
                                                           std::string credential) {
  auto work = std::make_shared<FanOut>(executor_);
  work->rows = std::move(rows);
  work->credential = std::move(credential);
  for (auto const& row : work->rows) {
    auto& pending = work->results.emplace_back(std::in_place);
    pending->sandbox = row.public_id;
    pending->note = "it is still being applied";
    pending->failed = true;
  }
  auto const hands = std::min(options_.at_a_time, work->rows.size());
  for (std::size_t i = 0; i < hands; ++i)
    work_.spawn("apply a policy", run(work));
  auto const ended =
      co_await async::run_until(base::system_clock().in(options_.together), work->wait());
  if (ended == async::Ended::cancelled)
    co_return base::fail(Code::cancelled, "the caller went away");
  std::vector<Enforced> out;
  for (auto const& one : work->results)
    if (one) out.push_back(*one);
  co_return out;
}

async::Task<std::vector<Enforced>> NetworkService::enforce_under(std::string level,
                                                                 std::string subject,
                                                                 base::Deadline deadline,
                                                                 std::string credential) {
  auto rows = co_await store_.policies.live_under(std::move(level), std::move(subject), deadline);
  if (!rows) co_return base::passing(rows);
  co_return co_await enforce(std::move(*rows), std::move(credential));
}

asio::awaitable<void> NetworkService::finish_recent() {
  if (!options_.has_uplink) co_return;
  for (;;) {
    auto const deadline = base::system_clock().in(options_.per_sandbox);
    auto scopes = co_await store_.policies.changed_within(recent, deadline);
    if (scopes) {
      for (auto const& [level, subject] : *scopes) {
        auto const done =
            co_await enforce_under(level, subject, base::system_clock().in(options_.per_sandbox));
        if (!done)
          base::log::warn("policy_not_in_force",
                          {{"level", level}, {"what", done.error().message()}});
      }
      co_return;
    }
    co_await async::sleep_for(std::chrono::seconds(1));  // the database is not there yet
  }
}

async::Task<void> NetworkService::catch_up(store::SandboxRow row,
                                           std::uint64_t generation,
                                           std::vector<wire::Lease> credentials) {
  if (!options_.has_uplink) co_return base::Result<void>();
  auto now = co_await plan_of_live(
      this, &store_, network_of(row), base::system_clock().in(options_.per_sandbox));
  if (!now) co_return base::passing(now);
  bool const current =
      now->policy.generation == generation && same_leases(now->credentials, credentials);
  if (current) co_return base::Result<void>();
  row.state = domain::SandboxState::running;
  auto enforced = co_await enforce_one(std::move(row), {});
  if (!enforced) co_return base::passing(enforced);
  co_return base::Result<void>();
}

}  // namespace controlplane
