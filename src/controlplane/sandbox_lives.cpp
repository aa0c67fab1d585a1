// Pause, resume, suspend, restore: the row moves with an operation, the worker does it, the row
// settles. What a death in between leaves, a controller finishes or undoes.
#include "base/fault.hpp"
#include "base/id.hpp"
#include "base/log.hpp"
#include "controlplane/sandbox_service.hpp"
#include "domain/timeouts.hpp"

namespace controlplane {
namespace {

using base::Code;
using domain::SandboxEvent;
using domain::SandboxState;

constexpr std::chrono::milliseconds settle_timeout{5000};
constexpr int settle_attempts = 6;
/// A worker tells of an end at once; a controller writes it down within milliseconds.
constexpr std::chrono::milliseconds end_patience{3000};
constexpr int begin_attempts = 8;

/// A kind of change: what its operation is called, how it ends, what the worker is told.
struct Kind {
  SandboxEvent begin;
  SandboxEvent done;
  SandboxEvent failed;
  char const* operation;
  char const* verb;
};

constexpr std::array kinds{
    Kind{SandboxEvent::pause,
         SandboxEvent::pause_done,
         SandboxEvent::pause_failed,
         "sandbox.pause",
         "pause"},
    Kind{SandboxEvent::resume,
         SandboxEvent::resume_done,
         SandboxEvent::resume_failed,
         "sandbox.resume",
         "resume"},
    Kind{SandboxEvent::suspend,
         SandboxEvent::suspend_done,
         SandboxEvent::suspend_failed,
         "sandbox.suspend",
         "suspend"},
    Kind{SandboxEvent::restore,
         SandboxEvent::restore_done,
         SandboxEvent::restore_failed,
         "sandbox.resume",
         "restore"},
};

Kind const& kind_of(SandboxEvent begin) {
  return *std::ranges::find(kinds, begin, &Kind::begin);
}

base::Deadline in_a_moment() {
  return base::system_clock().in(settle_timeout);
}

/// What is at work on a row in a transitional state.
Kind const* kind_in(SandboxState state) {
  switch (state) {
    case SandboxState::pausing:
      return &kind_of(SandboxEvent::pause);
    case SandboxState::resuming:
      return &kind_of(SandboxEvent::resume);
    case SandboxState::suspending:
      return &kind_of(SandboxEvent::suspend);
    case SandboxState::restoring:
      return &kind_of(SandboxEvent::restore);
    default:
      return nullptr;
  }
}

}  // namespace

struct SandboxService::Moving {
  store::SandboxRow row;  // in the transitional state
  std::string operation;
  std::string actor;
  std::optional<wire::StartSandbox> start;  // of a restore
};

async::Task<Started> SandboxService::pause(Asker asker,
                                           std::string sandbox,
                                           base::Deadline deadline) {
  return move(std::move(asker), std::move(sandbox), "sandbox.pause", {}, deadline);
}

async::Task<Started> SandboxService::suspend(Asker asker,
                                             std::string sandbox,
                                             base::Deadline deadline) {
  return move(std::move(asker), std::move(sandbox), "sandbox.suspend", {}, deadline);
}

async::Task<Started> SandboxService::resume(Asker asker,
                                            std::string sandbox,
                                            std::optional<std::uint32_t> timeout_s,
                                            base::Deadline deadline) {
  return move(std::move(asker), std::move(sandbox), "sandbox.resume", timeout_s, deadline);
}

async::Task<Started> SandboxService::move(Asker asker,
                                          std::string sandbox,
                                          std::string kind,
                                          std::optional<std::uint32_t> timeout_s,
                                          base::Deadline deadline) {
  if (timeout_s && *timeout_s > options_.timeout_s_max) {
    co_return base::fail(Code::invalid_argument,
                         fmt::format("timeout_s: at most {} seconds", options_.timeout_s_max));
  }
  auto row = co_await get(asker.owner.project_id, sandbox, Ended::hide, deadline);
  if (!row) co_return base::passing(row);
  auto before = co_await earlier(asker, kind, deadline);
  if (!before) co_return base::passing(before);
  if (*before) co_return std::move(**before);
  for (int attempt = 1; attempt <= begin_attempts; ++attempt) {
    auto event = kind == "sandbox.pause" ? SandboxEvent::pause : SandboxEvent::suspend;
    if (kind == "sandbox.resume") {
      event = row->state == SandboxState::suspended ? SandboxEvent::restore : SandboxEvent::resume;
    }
    auto const* now = kind_in(row->state);
    if (now && kind == now->operation) {
      auto joined = co_await under_way(*row, now->begin, deadline);
      if (!joined) co_return base::passing(joined);
      if (*joined) co_return std::move(**joined);
    }
    auto allowed = domain::get_transition(row->state, event);
    if (!allowed) co_return base::passing(allowed);
    auto started = co_await begin_move(asker, *row, event, timeout_s, deadline);
    if (started || started.error().code() != Code::cancelled) co_return started;
    // Lost the race: the row has moved.
    row = co_await get(asker.owner.project_id, sandbox, Ended::hide, deadline);
    if (!row) co_return base::passing(row);
  }
  co_return base::fail(Code::conflict, "the sandbox changes its state all the time; try again");
}

/// The operation that is at work on it; nothing when it ended just now.
async::Task<std::optional<Started>> SandboxService::under_way(store::SandboxRow row,
                                                              SandboxEvent event,
                                                              base::Deadline deadline) {
  std::optional<Started> started;
  auto operation =
      co_await store_.operations.find_unfinished(row.public_id, kind_of(event).operation, deadline);
  if (!operation) co_return base::passing(operation);
  if (*operation) started = Started{std::move(row), std::move(**operation), false};
  co_return started;
}

/// `cancelled` when the row was not in that state any more.
async::Task<Started> SandboxService::begin_move(Asker asker,
                                                store::SandboxRow row,
                                                SandboxEvent event,
                                                std::optional<std::uint32_t> timeout_s,
                                                base::Deadline deadline) {
  auto const& kind = kind_of(event);
  store::Begin begin;
  begin.id = row.id;
  begin.project_id = row.project_id;
  begin.from = row.state;
  begin.event = event;
  begin.kind = kind.operation;
  begin.timeout_s = timeout_s;
  begin.operation = base::make_short_id('x');
  begin.lease_owner = options_.instance;
  begin.lease = options_.lease;
  begin.actor = asker.owner.key_public_id;
  begin.idempotency_key = asker.idempotency_key;
  begin.request_sha256 = asker.request_sha256;
  Started started;
  started.operation.public_id = begin.operation;
  started.operation.project_id = row.project_id;
  started.operation.kind = kind.operation;
  started.operation.sandbox = row.public_id;
  started.operation.actor = begin.actor;
  started.operation.created_at = base::system_clock().wall_now();
  auto begun = co_await store_.sandboxes.begin(std::move(begin), deadline);
  if (!begun && store::sqlstate_of(begun.error()) == "23505" && !asker.idempotency_key.empty()) {
    auto winner = co_await earlier(asker, kind.operation, deadline);
    if (!winner) co_return base::passing(winner);
    if (*winner) co_return std::move(**winner);
  }
  if (!begun) co_return base::passing(begun);
  if (!begun->applied) co_return base::fail(Code::cancelled, "the sandbox has changed its state");
  hub_.poke();
  started.sandbox = *begun->now;
  spawn_move(std::move(*begun->now), started.operation.public_id, asker.owner.key_public_id);
  co_return started;
}

void SandboxService::spawn_move(store::SandboxRow row, std::string operation, std::string actor) {
  begin(operation);
  auto moving =
      std::make_shared<Moving>(Moving{std::move(row), std::move(operation), std::move(actor), {}});
  work_.spawn("move a sandbox", run_move(std::move(moving)));
}

asio::awaitable<void> SandboxService::run_move(std::shared_ptr<Moving> moving) {
  struct Done {
    SandboxService& service;
    std::string const& operation;

    ~Done() { service.finished(operation); }
  } const done{*this, moving->operation};

  auto machine = co_await ask_to_move(moving);
  bool const cancelled = !machine && machine.error().code() == Code::cancelled;
  if (cancelled) co_return;  // this process ends; a controller goes on when the lease is over
  auto settling = settle_move(moving, std::move(machine));
  co_await std::move(settling);
}

/// Asks again while the worker does not answer: a repeat of what was done already is answered with
/// how it is, or refused as being done.
async::Task<wire::WorkerSandbox> SandboxService::ask_to_move(std::shared_ptr<Moving> moving) {
  auto const& row = moving->row;
  auto const& kind = *kind_in(row.state);
  bool const restores = row.state == SandboxState::restoring;
  auto const deadline =
      base::system_clock().in(restores ? options_.start_timeout : options_.suspend_timeout);
  auto const patient_until = base::system_clock().in(options_.patience);
  std::chrono::milliseconds pause{100};
  for (;;) {
    if (SPACE_FAULT("api.move.before_worker"))
      co_return base::fail(Code::unavailable, "the worker was not asked (injected)");
    auto machine = base::Result<wire::WorkerSandbox>();
    if (restores) {
      machine = co_await ask_to_restore(moving, deadline);
    } else {
      machine =
          co_await workers_.move(row.node_address, row.public_id, kind.verb, row.epoch, deadline);
    }
    if (SPACE_FAULT("api.move.after_worker"))
      co_return base::fail(Code::unavailable, "the worker's answer was lost (injected)");
    bool const silent = !machine && machine.error().code() == Code::unavailable;
    if (!silent || base::system_clock().in(pause) >= patient_until) co_return machine;
    co_await async::sleep_for(pause);
    pause = std::min(pause * 2, std::chrono::milliseconds(2000));
  }
}

/// Tokens, policy and credentials come from here, never from the captured memory.
async::Task<wire::WorkerSandbox> SandboxService::ask_to_restore(std::shared_ptr<Moving> moving,
                                                                base::Deadline deadline) {
  auto const& row = moving->row;
  auto plan = co_await network_.plan(network_of(row), {}, deadline);
  if (!plan) co_return base::passing(plan);
  wire::StartSandbox start;
  start.sandbox = row.public_id;
  start.epoch = row.epoch;
  start.build = row.build;
  start.vcpus = row.vcpus;
  start.memory_mib = row.memory_mib;
  start.disk_mib = row.disk_mib;
  start.access_token = access_token(row);
  start.default_user = row.default_user;
  start.default_workdir = row.default_workdir;
  start.policy = std::move(plan->policy);
  start.credentials = std::move(plan->credentials);
  moving->start = start;
  co_return co_await workers_.restore(row.node_address, std::move(start), deadline);
}

/// The worker does not know its machine any more. Then its end is on its way to the row, and that
/// closes the operation, with the reason.
asio::awaitable<bool> SandboxService::ends_meanwhile(std::shared_ptr<Moving> moving) {
  auto const until = base::system_clock().in(end_patience);
  while (base::system_clock().steady_now() < until) {
    auto now =
        co_await get(moving->row.project_id, moving->row.public_id, Ended::show, in_a_moment());
    if (now && (domain::is_terminal(now->state) || now->state == SandboxState::deleting))
      co_return true;
    co_await async::sleep_for(std::chrono::milliseconds(50));
  }
  co_return false;
}

asio::awaitable<void> SandboxService::settle_move(std::shared_ptr<Moving> moving,
                                                  base::Result<wire::WorkerSandbox> machine) {
  auto const& kind = *kind_in(moving->row.state);
  bool const lost =
      !machine && kind.begin != SandboxEvent::restore &&
      (machine.error().code() == Code::not_found || machine.error().code() == Code::conflict);
  if (lost) {
    bool const ended = co_await ends_meanwhile(moving);
    if (ended) co_return;
  }
  // Nobody knows how it is: a controller asks the worker as long as it takes.
  bool const unknown = !machine && (machine.error().code() == Code::unavailable ||
                                    machine.error().code() == Code::deadline_exceeded);
  store::Change change;
  change.id = moving->row.id;
  change.from = moving->row.state;
  change.event = machine ? kind.done : kind.failed;
  change.epoch = moving->row.epoch;
  change.actor = moving->actor;
  change.operation = moving->operation;
  change.deadline_grace = domain::deadline_grace(moving->actor);
  if (machine) {
    change.suspended_bytes = machine->suspended_bytes;
    if (moving->start) {
      auto caught_up = co_await network_.catch_up(
          moving->row, moving->start->policy->generation, moving->start->credentials);
      if (!caught_up)
        base::log::warn(
            "policy_not_in_force",
            {{"sandbox", moving->row.public_id}, {"what", caught_up.error().message()}});
      change.data = json::object{{"started_by", machine->started_by}};
    }
  } else {
    change.error_code = std::string(base::name_of(machine.error().code()));
    change.error_message = machine.error().message();
    change.data = json::object{{"why", machine.error().message()}};
    base::log::warn("move_failed",
                    {{"sandbox", moving->row.public_id},
                     {"kind", kind.operation},
                     {"why", machine.error().message()},
                     {"detail", machine.error().detail()}});
  }
  std::chrono::milliseconds pause{50};
  for (int attempt = 1; !unknown && attempt <= settle_attempts; ++attempt) {
    auto changed = co_await store_.sandboxes.apply(change, base::system_clock().in(settle_timeout));
    if (changed) {
      hub_.poke();  // not applied: it was deleted meanwhile, or has ended
      co_return;
    }
    co_await async::sleep_for(pause);
    pause *= 2;
  }
  auto handing = hand_over(moving->operation);
  co_await std::move(handing);
}

async::Task<store::SandboxRow> SandboxService::wake(Asker asker,
                                                    std::string sandbox,
                                                    std::optional<std::uint32_t> timeout_s,
                                                    base::Deadline until) {
  while (base::system_clock().steady_now() < until) {
    auto row = co_await get(asker.owner.project_id, sandbox, Ended::hide, until);
    if (!row) co_return base::passing(row);
    if (row->state == SandboxState::running) co_return row;
    if (row->state == SandboxState::deleting)
      co_return base::fail(Code::not_found, fmt::format("the sandbox \"{}\" is ending", sandbox));
    std::string operation;
    bool resumes = false;
    if (row->state == SandboxState::suspended || row->state == SandboxState::paused) {
      Asker once = asker;
      once.idempotency_key.clear();
      auto started = co_await resume(std::move(once), sandbox, timeout_s, until);
      // Conflict: somebody else was faster with something; look again.
      if (!started && started.error().code() != Code::conflict) co_return base::passing(started);
      if (started) operation = started->operation.public_id;
      resumes = started.has_value();
    } else if (auto const* kind = kind_in(row->state)) {
      auto started = co_await under_way(*row, kind->begin, until);
      if (!started) co_return base::passing(started);
      if (*started) operation = (*started)->operation.public_id;
      resumes = kind->done == SandboxEvent::restore_done || kind->done == SandboxEvent::resume_done;
    }
    if (operation.empty()) {
      co_await async::sleep_for(std::chrono::milliseconds(50));
      continue;
    }
    auto done = co_await wait(row->project_id, operation, until);
    if (!done) co_return base::passing(done);
    if (resumes && done->state == "failed") {
      co_return base::fail(
          base::code_named(done->error_code),
          fmt::format("the sandbox could not be resumed: {}", done->error_message));
    }
  }
  co_return base::fail(Code::deadline_exceeded, "the sandbox is still being resumed; try again");
}

async::Task<Suspended> SandboxService::suspend_all(std::string node,
                                                   std::size_t at_a_time,
                                                   base::Deadline until) {
  Suspended result;
  std::map<std::string, std::string> open;  // operation → sandbox
  std::map<std::string, std::string> projects;
  while (base::system_clock().steady_now() < until) {
    auto const room = static_cast<std::uint32_t>(at_a_time - std::min(at_a_time, open.size()));
    if (room > 0) {
      store::DueSuspends which;
      which.node = node;
      which.at_once = true;
      // A failed one is not claimed for ever: it is reported, once.
      if (!result.failed.empty()) which.at_once = false;
      auto due = co_await store_.sandboxes.claim_suspends(
          which, options_.instance, options_.lease, room, until);
      if (!due) co_return base::passing(due);
      for (auto& one : *due) {
        open.emplace(one.operation, one.sandbox.public_id);
        projects.emplace(one.operation, one.sandbox.project_id);
        spawn_move(std::move(one.sandbox), one.operation, one.actor);
      }
      if (!due->empty()) hub_.poke();
    }
    if (open.empty()) co_return result;
    auto const [operation, sandbox] = *open.begin();
    auto done = co_await wait(projects[operation], operation, until);
    if (!done) co_return base::passing(done);
    if (!done->done()) break;
    if (done->error_code.empty()) {
      ++result.suspended;
    } else {
      result.failed.emplace_back(sandbox, done->error_message);
    }
    open.erase(operation);
  }
  for (auto const& [operation, sandbox] : open)
    result.failed.emplace_back(sandbox, "it was not suspended in time");
  co_return result;
}

}  // namespace controlplane
