#include "controlplane/sandbox_service.hpp"

#include "base/fault.hpp"
#include "base/id.hpp"
#include "base/log.hpp"

namespace controlplane {
namespace {

using base::Code;
using domain::SandboxEvent;
using domain::SandboxState;

constexpr std::chrono::milliseconds settle_timeout{5000};
constexpr int end_attempts = 8;

bool has_ended(store::SandboxRow const& row) {
  return domain::is_terminal(row.state);
}

}  // namespace

struct SandboxService::Removal {
  store::SandboxRow row;
  std::string operation;
  std::string actor;
};

SandboxService::SandboxService(asio::any_io_executor executor,
                               store::Store& store,
                               Nodes& nodes,
                               WorkerClient& workers,
                               EventHub& hub,
                               Tokens const& tokens,
                               NetworkService& network,
                               Options options)
    : executor_(executor),
      store_(store),
      nodes_(nodes),
      workers_(workers),
      hub_(hub),
      tokens_(tokens),
      network_(network),
      options_(std::move(options)),
      work_(std::move(executor)) {}

SandboxService::~SandboxService() = default;

void SandboxService::begin(std::string const& operation) {
  running_.emplace(operation, std::make_shared<Running>(executor_));
}

void SandboxService::finished(std::string const& operation) noexcept {
  auto const found = running_.find(operation);
  if (found == running_.end()) return;
  auto const running = std::move(found->second);
  running_.erase(found);
  running->signal.notify_all();
}

/// What an earlier request with this Idempotency-Key made; nothing when there was none.
async::Task<std::optional<Started>> SandboxService::earlier(Asker asker,
                                                            std::string kind,
                                                            base::Deadline deadline) {
  std::optional<Started> found;
  if (asker.idempotency_key.empty()) co_return found;
  auto operation = co_await store_.operations.find_by_key(
      asker.owner.project_id, asker.idempotency_key, deadline);
  if (!operation) co_return base::passing(operation);
  if (!*operation) co_return found;
  if ((*operation)->kind != kind || (*operation)->request_sha256 != asker.request_sha256) {
    co_return base::fail(Code::conflict,
                         "Idempotency-Key: it was used for another request; choose a new one");
  }
  auto sandbox =
      co_await store_.sandboxes.find(asker.owner.project_id, (*operation)->sandbox, deadline);
  if (!sandbox) co_return base::passing(sandbox);
  if (!*sandbox)
    co_return base::fail(Code::not_found, "what this Idempotency-Key made is no longer on record");
  found = Started{std::move(**sandbox), std::move(**operation), true};
  co_return found;
}

async::Task<store::SandboxRow> SandboxService::get(std::string project_id,
                                                   std::string sandbox,
                                                   Ended ended,
                                                   base::Deadline deadline) {
  if (!base::is_short_id('i', sandbox))
    co_return base::fail(Code::not_found, fmt::format("there is no sandbox \"{}\"", sandbox));
  auto row = co_await store_.sandboxes.find(std::move(project_id), sandbox, deadline);
  if (!row) co_return base::passing(row);
  if (!*row)
    co_return base::fail(Code::not_found, fmt::format("there is no sandbox \"{}\"", sandbox));
  if (ended == Ended::hide && has_ended(**row)) {
    co_return base::fail(
        Code::not_found,
        fmt::format("the sandbox \"{}\" has ended: {}", sandbox, (*row)->end_detail));
  }
  co_return std::move(**row);
}

async::Task<store::OperationRow> SandboxService::wait(std::string project_id,
                                                      std::string operation,
                                                      base::Deadline until) {
  auto const not_there = [&] {
    return base::fail(Code::not_found, fmt::format("there is no operation \"{}\"", operation));
  };
  if (!base::is_short_id('x', operation)) co_return not_there();
  // Set up before the first look, so that nothing is missed in between.
  auto place = co_await hub_.head(base::system_clock().in(settle_timeout));
  for (;;) {
    auto const local = running_.find(operation);
    if (local != running_.end()) {
      auto const running = local->second;
      auto waiting = running->signal.wait();
      auto const ended = co_await async::run_until(until, std::move(waiting));
      if (ended == async::Ended::cancelled)
        co_return base::fail(Code::cancelled, "the caller went away");
    }
    auto row = co_await store_.operations.find(
        project_id, operation, base::system_clock().in(settle_timeout));
    if (!row) co_return base::passing(row);
    if (!*row) co_return not_there();
    if ((*row)->done() || base::system_clock().steady_now() >= until) co_return std::move(**row);
    if (running_.contains(operation)) continue;
    // It runs in another process: its end comes with an event of the sandbox, or is found by
    // looking.
    auto const look_again = std::min(until, base::system_clock().in(std::chrono::seconds(1)));
    if (place) {
      EventHub::Feed feed(hub_, project_id, (*row)->sandbox, *place);
      auto events = co_await feed.next(look_again);
      *place = feed.at();
      if (!events && events.error().code() == Code::cancelled) co_return base::passing(events);
      if (!events) co_await async::sleep_for(std::chrono::milliseconds(200));
    } else {
      co_await async::sleep_until(look_again);
    }
  }
}

/// What ran here knows what was committed; of everything else the database is asked.
async::Task<Started> SandboxService::wait_for(Started started, base::Deadline until) {
  auto const local = running_.find(started.operation.public_id);
  if (local != running_.end()) {
    auto const running = local->second;
    auto waiting = running->signal.wait();
    auto const ended = co_await async::run_until(until, std::move(waiting));
    if (ended == async::Ended::cancelled)
      co_return base::fail(Code::cancelled, "the caller went away");
    if (running->became) {
      started.sandbox = *running->became;
      started.operation.state = "succeeded";
      started.operation.finished_at = started.sandbox.started_at;  // of one transaction
      co_return started;
    }
  }
  auto waited = co_await wait(started.operation.project_id, started.operation.public_id, until);
  if (!waited) co_return base::passing(waited);
  started.operation = std::move(*waited);
  auto row = co_await store_.sandboxes.find(started.operation.project_id,
                                            started.sandbox.public_id,
                                            base::system_clock().in(settle_timeout));
  if (!row) co_return base::passing(row);
  if (*row) started.sandbox = std::move(**row);
  co_return started;
}

/// Decides the end, whatever the state is by then. The row that comes back is `deleting` or has
/// ended.
async::Task<store::SandboxRow> SandboxService::begin_end(store::SandboxRow row,
                                                         std::string actor,
                                                         base::Deadline deadline) {
  for (int attempt = 1; attempt <= end_attempts; ++attempt) {
    if (row.state == SandboxState::deleting || has_ended(row)) co_return row;
    store::Change change;
    change.id = row.id;
    change.from = row.state;
    change.event = SandboxEvent::end;
    change.actor = actor;
    change.reason = domain::EndReason::user;
    change.detail = "deleted by key " + actor;
    auto changed = co_await store_.sandboxes.apply(std::move(change), deadline);
    if (!changed) co_return base::passing(changed);
    if (!changed->now)
      co_return base::fail(Code::not_found, "the sandbox has ended and is no longer on record");
    row = std::move(*changed->now);
  }
  co_return base::fail(Code::conflict, "the sandbox changes its state all the time; try again");
}

async::Task<Started> SandboxService::remove(Asker asker,
                                            std::string sandbox,
                                            base::Deadline deadline) {
  auto row = co_await get(asker.owner.project_id, sandbox, Ended::hide, deadline);
  if (!row) co_return base::passing(row);
  if (row->state == SandboxState::deleting) {
    auto under_way =
        co_await store_.operations.find_unfinished(sandbox, "sandbox.delete", deadline);
    if (!under_way) co_return base::passing(under_way);
    if (*under_way) co_return Started{std::move(*row), std::move(**under_way), false};
  }
  if (SPACE_FAULT("api.delete.before_commit"))
    co_return base::fail(Code::unavailable, "the delete was interrupted (injected)");
  store::NewOperation wanted;
  wanted.public_id = base::make_short_id('x');
  wanted.project_id = row->project_id;
  wanted.kind = "sandbox.delete";
  wanted.sandbox = row->public_id;
  wanted.lease_owner = options_.instance;
  wanted.lease = options_.lease;
  wanted.actor = asker.owner.key_public_id;
  auto operation = co_await store_.operations.create(std::move(wanted), deadline);
  if (!operation) co_return base::passing(operation);
  begin(operation->public_id);
  auto ending = co_await begin_end(*row, asker.owner.key_public_id, deadline);
  if (!ending) {
    finished(operation->public_id);
    co_return base::passing(ending);
  }
  SPACE_FAULT("api.delete.after_commit");
  hub_.poke();
  auto removal =
      std::make_shared<Removal>(Removal{*ending, operation->public_id, asker.owner.key_public_id});
  work_.spawn("delete a sandbox", run_remove(removal));
  co_return Started{std::move(*ending), std::move(*operation), false};
}

asio::awaitable<void> SandboxService::run_remove(std::shared_ptr<Removal> removal) {
  struct Done {
    SandboxService& service;
    std::string const& operation;

    ~Done() { service.finished(operation); }
  } const done{*this, removal->operation};

  if (has_ended(removal->row)) {
    auto finish = co_await store_.operations.finish(
        removal->operation, "", "", base::system_clock().in(settle_timeout));
    if (!finish) base::log::warn("operation_not_finished", {{"operation", removal->operation}});
    co_return;
  }
  bool settled = false;
  if (!SPACE_FAULT("api.delete.before_worker")) {
    auto ended = co_await release(removal->row);
    bool const lost = SPACE_FAULT("api.delete.after_worker");
    if (ended && !lost) {
      store::End end;
      end.id = removal->row.id;
      end.event = SandboxEvent::released;
      end.actor = removal->actor;
      end.reason = domain::EndReason::user;
      end.console_tail = ended->console_tail;
      auto written =
          co_await store_.sandboxes.end(std::move(end), base::system_clock().in(settle_timeout));
      settled = written.has_value();
    }
  }
  hub_.poke();
  if (settled) co_return;
  // A controller goes on; whoever waits sees the operation run.
  auto handing = hand_over(removal->operation);
  co_await std::move(handing);
}

/// The worker's word that nothing is left. Tries again while it does not answer.
async::Task<wire::EndedSandbox> SandboxService::release(store::SandboxRow row) {
  auto const patient_until = base::system_clock().in(options_.patience);
  std::chrono::milliseconds pause{100};
  for (;;) {
    auto ended = co_await workers_.remove(row.node_address,
                                          row.public_id,
                                          row.epoch,
                                          base::system_clock().in(options_.remove_timeout));
    if (ended) co_return ended;
    base::log::warn("release_failed",
                    {{"sandbox", row.public_id},
                     {"why", ended.error().message()},
                     {"detail", ended.error().detail()}});
    bool const silent = ended.error().code() == Code::unavailable;
    if (!silent || base::system_clock().in(pause) >= patient_until) co_return base::passing(ended);
    co_await async::sleep_for(pause);
    pause = std::min(pause * 2, std::chrono::milliseconds(2000));
  }
}

async::Task<store::SandboxRow> SandboxService::set_timeout(Asker asker,
                                                           std::string sandbox,
                                                           std::optional<std::uint32_t> timeout_s,
                                                           bool extend_only,
                                                           base::Deadline deadline) {
  if (timeout_s && *timeout_s > options_.timeout_s_max) {
    co_return base::fail(Code::invalid_argument,
                         fmt::format("timeout_s: at most {} seconds", options_.timeout_s_max));
  }
  auto row = co_await get(asker.owner.project_id, sandbox, Ended::hide, deadline);
  if (!row) co_return base::passing(row);
  auto changed = co_await store_.sandboxes.set_timeout(
      row->id, timeout_s, extend_only, asker.owner.key_public_id, deadline);
  if (!changed) co_return base::passing(changed);
  if (!changed->now || has_ended(*changed->now))
    co_return base::fail(Code::not_found, fmt::format("the sandbox \"{}\" has ended", sandbox));
  auto const state = changed->now->state;
  if (!changed->applied && state != SandboxState::running && state != SandboxState::paused) {
    co_return base::fail(Code::conflict,
                         fmt::format("the sandbox is {}; its timeout can be set while it runs",
                                     domain::name_of(state)));
  }
  hub_.poke();
  co_return std::move(*changed->now);
}

async::Task<store::SandboxRow> SandboxService::rotate_token(Asker asker,
                                                            std::string sandbox,
                                                            base::Deadline deadline) {
  auto row = co_await get(asker.owner.project_id, sandbox, Ended::hide, deadline);
  if (!row) co_return base::passing(row);
  if (!row->secure)
    co_return base::fail(Code::conflict, "the sandbox was made without an access token");
  if (row->state != SandboxState::running && row->state != SandboxState::paused) {
    co_return base::fail(Code::conflict,
                         fmt::format("the sandbox is {}; its token can be rotated while it runs",
                                     domain::name_of(row->state)));
  }
  auto const next = row->token_generation + 1;
  auto const token = tokens_.access_token(row->public_id, next);
  auto changed = co_await store_.sandboxes.rotate_token(
      row->id, row->token_generation, sha256_hex(token), asker.owner.key_public_id, deadline);
  if (!changed) co_return base::passing(changed);
  if (!changed->applied)
    co_return base::fail(Code::conflict,
                         "somebody else rotated the token at this moment; read the sandbox again");
  hub_.poke();
  wire::SetToken const message{row->epoch, token};
  auto told = co_await workers_.set_token(row->node_address, row->public_id, message, deadline);
  if (!told) {
    co_return base::fail(
        Code::unavailable,
        "the old token is dead, but the sandbox could not be told the new one; rotate it again",
        told.error().message());
  }
  co_return std::move(*changed->now);
}

std::string SandboxService::access_token(store::SandboxRow const& sandbox) const {
  if (!sandbox.secure || sandbox.token_generation == 0) return {};
  return tokens_.access_token(sandbox.public_id, sandbox.token_generation);
}

std::string SandboxService::traffic_token(store::SandboxRow const& sandbox) const {
  if (has_public_traffic(sandbox) || sandbox.token_generation == 0) return {};
  return tokens_.traffic_token(sandbox.public_id, sandbox.token_generation);
}

bool has_public_traffic(store::SandboxRow const& sandbox) {
  auto const* network = sandbox.network.if_object();
  auto const* flag = network ? network->if_contains("allowPublicTraffic") : nullptr;
  return !flag || !flag->is_bool() || flag->get_bool();
}

asio::awaitable<void> SandboxService::hand_over(std::string operation) {
  auto done = co_await store_.operations.hand_over(
      options_.instance, operation, base::system_clock().in(settle_timeout));
  if (!done)
    base::log::warn("operation_not_handed_over",
                    {{"operation", operation}, {"why", done.error().detail()}});
}

asio::awaitable<void> SandboxService::renew_leases() {
  for (;;) {
    co_await async::sleep_for(
        std::chrono::duration_cast<std::chrono::milliseconds>(options_.lease) / 3);
    if (running_.empty()) continue;
    std::vector<std::string> operations;
    for (auto const& [operation, signal] : running_)
      operations.push_back(operation);
    auto renewed = co_await store_.operations.renew(options_.instance,
                                                    std::move(operations),
                                                    options_.lease,
                                                    base::system_clock().in(settle_timeout));
    if (!renewed) base::log::warn("leases_not_renewed", {{"why", renewed.error().detail()}});
  }
}

asio::awaitable<void> SandboxService::close() {
  work_.cancel();
  co_await work_.join();
}

}  // namespace controlplane
