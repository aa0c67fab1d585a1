// The create path: check, place, commit, start on the worker, settle.
#include "base/fault.hpp"
#include "base/id.hpp"
#include "base/log.hpp"
#include "controlplane/sandbox_service.hpp"
#include "domain/egress_policy.hpp"
#include "domain/labels.hpp"
#include "domain/template_name.hpp"

namespace controlplane {
namespace {

using base::Code;
using domain::SandboxEvent;
using domain::SandboxState;

constexpr int places_max = 3;
constexpr std::chrono::milliseconds settle_timeout{5000};
constexpr int settle_attempts = 6;

base::Result<void> check_size(std::string_view name,
                              std::uint32_t value,
                              std::uint32_t least,
                              std::uint32_t most) {
  if (value >= least && value <= most) return {};
  return base::fail(Code::invalid_argument, fmt::format("{}: must be {} to {}", name, least, most));
}

base::Result<void> check_spec(CreateSpec const& spec, std::uint32_t timeout_s_max) {
  if (auto ok = check_size("vcpus", spec.vcpus.value_or(1), 1, 32); !ok) return ok;
  if (auto ok = check_size("memory_mib", spec.memory_mib.value_or(512), 128, 262'144); !ok)
    return ok;
  if (auto ok = check_size("disk_mib", spec.disk_mib.value_or(4096), 512, 4'194'304); !ok)
    return ok;
  if (auto ok = domain::check_metadata(spec.metadata); !ok) return ok;
  if (auto ok = domain::check_environment(spec.env); !ok) return ok;
  if (spec.policy) {
    auto compiled = domain::EgressPolicy::compile({1, {{"sandbox", *spec.policy}}});
    if (!compiled) return base::passing(compiled, "policy");
  }
  if (spec.timeout_s > timeout_s_max) {
    return base::fail(Code::invalid_argument,
                      fmt::format("timeout_s: at most {} seconds", timeout_s_max));
  }
  if (spec.idle_timeout_s.value_or(0) > timeout_s_max) {
    return base::fail(Code::invalid_argument,
                      fmt::format("idle_timeout_s: at most {} seconds", timeout_s_max));
  }
  if (spec.on_timeout != "delete" && spec.on_timeout != "suspend")
    return base::fail(Code::invalid_argument, "on_timeout: expected \"delete\" or \"suspend\"");
  return {};
}

double millis_since(base::SteadyTime start) {
  return std::chrono::duration<double, std::milli>(base::system_clock().steady_now() - start)
      .count();
}

/// As the template's manifest has it; nothing when it says nothing that makes sense.
std::optional<std::uint32_t> idle_timeout_of(store::BuildRow const& build) {
  auto const* manifest = build.manifest.if_object();
  auto const* value = manifest ? manifest->if_contains("idle_timeout_s") : nullptr;
  if (!value || !value->is_int64()) return std::nullopt;
  auto const seconds = value->get_int64();
  if (seconds < 0 || seconds > std::numeric_limits<std::int32_t>::max()) return std::nullopt;
  return static_cast<std::uint32_t>(seconds);
}

json::object step(std::string_view name, double at_ms) {
  return {{"step", name}, {"at_ms", at_ms}};
}

}  // namespace

struct SandboxService::Creation {
  store::SandboxRow row;
  std::string operation;
  std::string actor;
  wire::StartSandbox start;
  domain::PlacementRequest wanted;
  domain::Placement::Reservation reservation;
  std::vector<std::string> refused;  // nodes that said no
  base::SteadyTime asked_at;
  json::array timeline;
};

async::Task<store::BuildRow> SandboxService::resolve(std::string project_id,
                                                     std::string name,
                                                     base::Deadline deadline) {
  auto parsed = domain::parse_template_name(name);
  if (!parsed) co_return base::passing(parsed, "template");
  auto build = co_await store_.templates.resolve(
      std::move(project_id), parsed->alias, parsed->tag, deadline);
  if (!build) co_return base::passing(build);
  if (!*build)
    co_return base::fail(
        Code::not_found,
        fmt::format("template \"{}\" does not exist; see GET /v1/templates", name));
  co_return std::move(**build);
}

/// The row to be, and the worker's order that goes with it.
base::Result<SandboxService::Wanted> SandboxService::wanted_of(Asker const& asker,
                                                               CreateSpec spec,
                                                               store::BuildRow const& build) const {
  Wanted out;
  out.policy = std::move(spec.policy);
  out.credentials = std::move(spec.credentials);
  auto& row = out.row;
  row.public_id = base::SandboxId::make().str();
  row.project_id = asker.owner.project_id;
  row.build_id = build.id;
  row.vcpus = spec.vcpus.value_or(build.vcpus);
  row.memory_mib = spec.memory_mib.value_or(build.memory_mib);
  row.disk_mib = spec.disk_mib.value_or(build.disk_mib);
  if (row.disk_mib < build.disk_mib) {
    return base::fail(
        Code::invalid_argument,
        fmt::format("disk_mib: at least {}, the size of the template", build.disk_mib));
  }
  auto const token = spec.secure ? tokens_.access_token(row.public_id, 1) : std::string();
  if (spec.secure) row.token_sha256 = sha256_hex(token);
  row.env_sealed = tokens_.seal(row.public_id, spec.env);
  row.metadata = std::move(spec.metadata);
  row.timeout_s = spec.timeout_s;
  row.on_timeout = std::move(spec.on_timeout);
  row.auto_resume = spec.auto_resume;
  row.idle_timeout_s = spec.idle_timeout_s ? spec.idle_timeout_s : idle_timeout_of(build);
  row.parent = std::move(spec.parent);
  row.secure = spec.secure;
  row.network = std::move(spec.network);
  row.api = std::move(spec.api);
  row.operation_public_id = base::make_short_id('x');
  row.lease_owner = options_.instance;
  row.lease = options_.lease;
  row.actor = asker.owner.key_public_id;
  row.idempotency_key = asker.idempotency_key;
  row.request_sha256 = asker.request_sha256;
  auto& start = out.start;
  start.sandbox = row.public_id;
  start.epoch = 1;
  start.build = build.build;
  start.vcpus = row.vcpus;
  start.memory_mib = row.memory_mib;
  start.disk_mib = row.disk_mib;
  start.env = std::move(spec.env);
  // What programs in E2B's guests look for, whoever made the sandbox: both kinds of client may use
  // it.
  start.env["E2B_SANDBOX"] = "true";
  start.env["E2B_SANDBOX_ID"] = row.public_id;
  start.env["E2B_TEMPLATE_ID"] = build.template_public_id;
  start.access_token = token;
  start.default_user = build.default_user;
  start.default_workdir = build.default_workdir;
  return out;
}

/// The levels that it will be under, its own among them, and the credentials that their rules name.
async::Task<void> SandboxService::add_network(Wanted* wanted,
                                              store::KeyOwner owner,
                                              std::string template_public_id,
                                              base::Deadline deadline) {
  auto const& own = wanted->policy;
  auto& brought = wanted->credentials;
  auto const& sandbox = wanted->row.public_id;
  NetworkOf const of{
      owner.project_id, owner.project_public_id, std::move(template_public_id), sandbox, brought};
  auto plan = base::Result<NetworkPlan>();
  if (own)
    plan = co_await network_.check_own(of, *own, deadline);
  else
    plan = co_await network_.plan(of, {}, deadline);
  if (!plan) co_return base::passing(plan);
  wanted->start.policy = std::move(plan->policy);
  wanted->start.credentials = std::move(plan->credentials);
  if (!brought.empty()) {
    auto kept =
        co_await store_.credentials.replace_of_sandbox(sandbox, std::move(brought), deadline);
    if (!kept) co_return base::passing(kept);
  }
  if (!own) co_return base::Result<void>();
  auto stored = co_await store_.policies.put(
      {"sandbox", sandbox, wire::encode(*own), owner.key_public_id, {}}, deadline);
  if (!stored) co_return base::passing(stored);
  co_return base::Result<void>();
}

async::Task<Started> SandboxService::create(Asker asker, CreateSpec spec, base::Deadline deadline) {
  auto const asked_at = base::system_clock().steady_now();
  auto checked = check_spec(spec, options_.timeout_s_max);
  if (!checked) co_return base::passing(checked);
  auto before = co_await earlier(asker, "sandbox.create", deadline);
  if (!before) co_return base::passing(before);
  if (*before) co_return std::move(**before);
  auto snapshot = co_await snapshot_of(asker.owner.project_id, &spec, deadline);
  if (!snapshot) co_return base::passing(snapshot);
  auto build = base::Result<store::BuildRow>();
  if (*snapshot)
    build = build_from_snapshot(spec, **snapshot);
  else
    build = co_await resolve(asker.owner.project_id, spec.template_name, deadline);
  if (!build) co_return base::passing(build);
  auto wanted = wanted_of(asker, std::move(spec), *build);
  if (!wanted) co_return base::passing(wanted);
  auto networked = co_await add_network(&*wanted, asker.owner, build->template_public_id, deadline);
  if (!networked) co_return base::passing(networked);
  auto& row = wanted->row;
  domain::PlacementRequest request{
      build->build, {1, row.vcpus, row.memory_mib, row.disk_mib}, false, {}};
  if (*snapshot) {
    request.worker = (*snapshot)->node;
    row.snapshot = (*snapshot)->public_id;
    wanted->start.from_snapshot = (*snapshot)->public_id;
  }
  auto place = co_await nodes_.choose_when_ready(
      request, std::min(deadline, base::system_clock().in(options_.worker_back)));
  if (!place) co_return base::passing(place);
  row.node = place->worker();
  auto const placed_ms = millis_since(asked_at);
  if (SPACE_FAULT("api.create.before_commit"))
    co_return base::fail(Code::unavailable, "the create was interrupted (injected)");
  auto const operation_id = row.operation_public_id;
  auto made = co_await store_.sandboxes.create(std::move(row), deadline);
  if (!made && store::sqlstate_of(made.error()) == "23505" && !asker.idempotency_key.empty()) {
    // The same request in another process was first.
    auto winner = co_await earlier(asker, "sandbox.create", deadline);
    if (!winner) co_return base::passing(winner);
    if (*winner) co_return std::move(**winner);
  }
  if (!made) co_return base::passing(made);
  SPACE_FAULT("api.create.after_commit");
  hub_.poke();
  auto creation = std::make_shared<Creation>(Creation{*made,
                                                      operation_id,
                                                      asker.owner.key_public_id,
                                                      std::move(wanted->start),
                                                      request,
                                                      std::move(*place),
                                                      {},
                                                      asked_at,
                                                      {}});
  creation->timeline.push_back(step("placed", placed_ms));
  creation->timeline.push_back(step("committed", millis_since(asked_at)));
  begin(operation_id);
  work_.spawn("create a sandbox", run_create(creation));
  Started started;
  started.operation.public_id = operation_id;
  started.operation.project_id = made->project_id;
  started.operation.kind = "sandbox.create";
  started.operation.sandbox = made->public_id;
  started.operation.created_at = made->created_at;
  started.sandbox = std::move(*made);
  co_return started;
}

asio::awaitable<void> SandboxService::run_create(std::shared_ptr<Creation> creation) {
  struct Done {
    SandboxService& service;
    std::string const& operation;

    ~Done() { service.finished(operation); }
  } const done{*this, creation->operation};

  auto machine = co_await start_somewhere(creation);
  if (machine) {
    auto const& start = creation->start;
    auto caught_up =
        co_await network_.catch_up(creation->row, start.policy->generation, start.credentials);
    if (!caught_up)
      base::log::warn(
          "policy_not_in_force",
          {{"sandbox", creation->row.public_id}, {"what", caught_up.error().message()}});
    auto settling = settle_started(creation, std::move(*machine));
    co_await std::move(settling);
  } else if (machine.error().code() != Code::cancelled) {
    auto settling = settle_failed(creation, std::move(machine.error()));
    co_await std::move(settling);
  }
}

/// A worker that has no room is no failure: the next one is asked, with a new epoch.
async::Task<wire::WorkerSandbox> SandboxService::start_somewhere(
    std::shared_ptr<Creation> creation) {
  for (int place = 1;; ++place) {
    if (SPACE_FAULT("api.create.before_worker"))
      co_return base::fail(Code::unavailable, "the worker was not asked (injected)");
    auto machine = co_await start_patiently(creation);
    if (SPACE_FAULT("api.create.after_worker"))
      co_return base::fail(Code::unavailable, "the worker's answer was lost (injected)");
    if (machine) co_return machine;
    auto const code = machine.error().code();
    if ((code != Code::exhausted && code != Code::unavailable) || place == places_max)
      co_return base::passing(machine);
    auto moved = co_await move_on(creation);
    if (!moved) co_return base::passing(moved);
    if (!*moved) co_return base::passing(machine);
    base::log::info("create_moved",
                    {{"sandbox", creation->row.public_id},
                     {"node", creation->row.node},
                     {"epoch", creation->row.epoch}});
  }
}

/// A worker that restarts answers again within seconds; asking again is safe, it knows id and
/// epoch.
async::Task<wire::WorkerSandbox> SandboxService::start_patiently(
    std::shared_ptr<Creation> creation) {
  auto const deadline = base::system_clock().in(options_.start_timeout);
  auto const patient_until = base::system_clock().in(options_.patience);
  std::chrono::milliseconds pause{100};
  for (;;) {
    auto const called_ms = millis_since(creation->asked_at);
    auto machine = co_await workers_.start(creation->row.node_address, creation->start, deadline);
    if (machine) {
      for (auto const& one : machine->timeline) {
        creation->timeline.push_back(step("worker." + one.step, called_ms + one.at_ms));
      }
      auto last = step("started", millis_since(creation->asked_at));
      if (!machine->started_by.empty()) last["by"] = machine->started_by;
      creation->timeline.push_back(std::move(last));
      co_return machine;
    }
    bool const silent = machine.error().code() == Code::unavailable;
    if (!silent || base::system_clock().in(pause) >= patient_until)
      co_return base::passing(machine);
    co_await async::sleep_for(pause);
    pause = std::min(pause * 2, std::chrono::milliseconds(2000));
  }
}

/// To the next candidate. False when there is none, or the row is not ours to move any more.
async::Task<bool> SandboxService::move_on(std::shared_ptr<Creation> creation) {
  creation->refused.push_back(creation->row.node);
  auto place = nodes_.choose(creation->wanted, creation->refused);
  if (!place) co_return false;
  auto changed = co_await store_.sandboxes.reassign(creation->row.id,
                                                    creation->row.epoch,
                                                    place->worker(),
                                                    base::system_clock().in(settle_timeout));
  if (!changed) co_return base::passing(changed);
  if (!changed->applied) co_return false;
  creation->row = std::move(*changed->now);
  creation->start.epoch = creation->row.epoch;
  creation->reservation = std::move(*place);
  co_return true;
}

asio::awaitable<void> SandboxService::settle_started(std::shared_ptr<Creation> creation,
                                                     wire::WorkerSandbox machine) {
  creation->reservation.settle();
  store::Change change;
  change.id = creation->row.id;
  change.from = SandboxState::creating;
  change.event = SandboxEvent::started;
  change.epoch = creation->row.epoch;
  change.actor = creation->actor;
  change.operation = creation->operation;
  change.timeline = creation->timeline;
  change.data = json::object{{"started_by", machine.started_by}};
  std::chrono::milliseconds pause{50};
  for (int attempt = 1; attempt <= settle_attempts; ++attempt) {
    auto changed = co_await store_.sandboxes.apply(change, base::system_clock().in(settle_timeout));
    if (changed) {
      // Not applied: it was deleted meanwhile, and the delete takes the machine away; or an answer
      // was lost and the first attempt had done it.
      auto const running = running_.find(creation->operation);
      if (changed->applied && running != running_.end())
        running->second->became = std::move(changed->now);
      hub_.poke();
      co_return;
    }
    base::log::warn("create_not_settled",
                    {{"sandbox", creation->row.public_id}, {"why", changed.error().detail()}});
    co_await async::sleep_for(pause);
    pause *= 2;
  }
  auto handing = hand_over(creation->operation);
  co_await std::move(handing);
}

/// The row ends only after the worker confirmed that nothing is left; until then it stays
/// `creating` and a controller goes on.
asio::awaitable<void> SandboxService::settle_failed(std::shared_ptr<Creation> creation,
                                                    base::Error error) {
  base::log::warn(
      "create_failed",
      {{"sandbox", creation->row.public_id}, {"why", error.message()}, {"detail", error.detail()}});
  auto ended = co_await release(creation->row);
  if (!ended) {
    auto handing = hand_over(creation->operation);
    co_await std::move(handing);
    co_return;
  }
  store::End end;
  end.id = creation->row.id;
  end.event = SandboxEvent::start_failed;
  end.epoch = creation->row.epoch;
  end.actor = creation->actor;
  end.reason = domain::EndReason::start_failed;
  end.detail = error.message();
  end.console_tail = ended->console_tail;
  end.error_code = std::string(base::name_of(error.code()));
  std::chrono::milliseconds pause{50};
  for (int attempt = 1; attempt <= settle_attempts; ++attempt) {
    if (SPACE_FAULT("api.create.before_failed")) break;
    auto written = co_await store_.sandboxes.end(end, base::system_clock().in(settle_timeout));
    if (written) {
      hub_.poke();
      co_return;
    }
    co_await async::sleep_for(pause);
    pause *= 2;
  }
  auto handing = hand_over(creation->operation);
  co_await std::move(handing);
}

}  // namespace controlplane
