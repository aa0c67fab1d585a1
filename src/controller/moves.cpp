// The part of Finisher that is about pauses, suspends, resumes and snapshots: asks the worker what
// is true and brings the row there.
#include "base/fault.hpp"
#include "base/log.hpp"
#include "controller/backoff.hpp"
#include "controller/finisher.hpp"
#include "domain/timeouts.hpp"

namespace controller {
namespace {

using namespace std::chrono_literals;
using domain::SandboxEvent;
using domain::SandboxState;

constexpr auto database_time = 5s;
constexpr auto worker_time = 5s;
/// Below the time that an operation is ours: what takes longer goes on at the worker, and is found
/// done by whoever claims it next.
constexpr auto worker_move_time = 15s;

base::Deadline in(std::chrono::milliseconds duration) {
  return base::system_clock().in(duration);
}

/// A transitional state: where it leads, and by which of the worker's states that is seen.
struct Way {
  SandboxState at;
  std::string_view kind;
  char const* verb;          // nullptr: only the API can do it, since only it knows the tokens
  std::string_view reached;  // the machine's state when it is done
  SandboxEvent done;
  SandboxEvent failed;
};

constexpr std::array ways{
    Way{SandboxState::pausing,
        "sandbox.pause",
        "pause",
        "paused",
        SandboxEvent::pause_done,
        SandboxEvent::pause_failed},
    Way{SandboxState::resuming,
        "sandbox.resume",
        "resume",
        "running",
        SandboxEvent::resume_done,
        SandboxEvent::resume_failed},
    Way{SandboxState::suspending,
        "sandbox.suspend",
        "suspend",
        "suspended",
        SandboxEvent::suspend_done,
        SandboxEvent::suspend_failed},
    Way{SandboxState::restoring,
        "sandbox.resume",
        nullptr,
        "running",
        SandboxEvent::restore_done,
        SandboxEvent::restore_failed},
};

Way const* way_of(SandboxState state, std::string_view kind) {
  auto const* found = std::ranges::find_if(
      ways, [&](Way const& one) { return one.at == state && one.kind == kind; });
  return found == ways.end() ? nullptr : found;
}

bool is_reached(SandboxState state, std::string_view kind) {
  return (kind == "sandbox.pause" && state == SandboxState::paused) ||
         (kind == "sandbox.resume" && state == SandboxState::running) ||
         (kind == "sandbox.suspend" && state == SandboxState::suspended);
}

}  // namespace

store::asio::awaitable<void> Finisher::finish_suspend(store::SandboxRow row,
                                                      std::string operation,
                                                      std::string actor,
                                                      base::Deadline until) {
  store::OperationRow held;
  held.public_id = std::move(operation);
  held.project_id = row.project_id;
  held.kind = "sandbox.suspend";
  held.sandbox = row.public_id;
  held.actor = std::move(actor);
  Backoff backoff;
  while (base::system_clock().steady_now() < until) {
    auto const step = co_await settle_move(row, held);
    if (step == Step::done) co_return;
    co_await async::sleep_for(backoff.next());
  }
}

store::asio::awaitable<Finisher::Step> Finisher::settle_move(store::SandboxRow row,
                                                             store::OperationRow operation) {
  auto const* way = way_of(row.state, operation.kind);
  if (!way) {
    // Somebody moved it on already, and the operation was left behind.
    bool const reached = is_reached(row.state, operation.kind);
    co_return co_await close_operation(
        std::move(operation),
        reached ? "" : "conflict",
        reached ? std::string()
                : fmt::format("the sandbox is {} by now", domain::name_of(row.state)));
  }
  if (SPACE_FAULT("controller.move.before_worker")) co_return Step::again;
  auto found = co_await links_.at(row.node_address).find(row.public_id, in(worker_time));
  if (!found) co_return Step::again;
  if (*found) co_return co_await carry_out_move(std::move(row), std::move(operation), **found);
  if (row.state != SandboxState::restoring)
    co_return Step::done;  // its machine is gone: looks at the node end the row, and this with it
  base::Error const why(base::Code::internal, "its suspended state is not on its host");
  co_return co_await apply_move(
      std::move(row), std::move(operation), SandboxEvent::restore_failed, 0, why);
}

store::asio::awaitable<Finisher::Step> Finisher::carry_out_move(store::SandboxRow row,
                                                                store::OperationRow operation,
                                                                wire::WorkerSandbox machine) {
  auto const& way = *way_of(row.state, operation.kind);
  if (machine.epoch > row.epoch) co_return Step::done;  // our row is old
  if (machine.state == way.reached && machine.epoch == row.epoch) {
    co_return co_await apply_move(
        std::move(row), std::move(operation), way.done, machine.suspended_bytes, {});
  }
  bool const stands = machine.state == "running" || machine.state == "paused";
  if (way.verb && stands) {
    auto moved = co_await links_.at(row.node_address)
                     .move(row.public_id, way.verb, row.epoch, in(worker_move_time));
    if (moved)
      co_return co_await apply_move(
          std::move(row), std::move(operation), way.done, moved->suspended_bytes, {});
    auto const code = moved.error().code();
    if (code == base::Code::unavailable || code == base::Code::deadline_exceeded)
      co_return Step::again;
    co_return co_await apply_move(
        std::move(row), std::move(operation), way.failed, 0, moved.error());
  }
  if (row.state == SandboxState::restoring && machine.state == "suspended") {
    base::Error const why(base::Code::unavailable,
                          machine.lost_reason.empty()
                              ? "what worked on its resume did not finish; resume it again"
                              : machine.lost_reason);
    co_return co_await apply_move(
        std::move(row), std::move(operation), SandboxEvent::restore_failed, 0, why);
  }
  co_return Step::again;  // under way: the worker will have an answer
}

store::asio::awaitable<Finisher::Step> Finisher::apply_move(store::SandboxRow row,
                                                            store::OperationRow operation,
                                                            SandboxEvent event,
                                                            std::uint64_t suspended_bytes,
                                                            std::optional<base::Error> why) {
  if (SPACE_FAULT("controller.move.before_row")) co_return Step::again;
  store::Change change;
  change.id = row.id;
  change.from = row.state;
  change.event = event;
  change.epoch = row.epoch;
  change.actor = "controller";
  change.operation = operation.public_id;
  change.suspended_bytes = suspended_bytes;
  change.deadline_grace = domain::deadline_grace(operation.actor);
  if (why) {
    change.error_code = std::string(base::name_of(why->code()));
    change.error_message = why->message();
    change.data = wire::json::object{{"why", why->message()}};
  }
  auto const changed = co_await store_.sandboxes.apply(std::move(change), in(database_time));
  if (!changed) co_return Step::again;
  base::log::info("move_finished",
                  {{"sandbox", row.public_id},
                   {"event", domain::name_of(event)},
                   {"why", why ? why->message() : std::string()},
                   {"by_us", changed->applied}});
  co_return Step::done;
}

/// Either the worker has it, or it is taken back: the request may still be on its way, and what it
/// makes then has no row and is removed.
store::asio::awaitable<Finisher::Step> Finisher::settle_snapshot(store::SandboxRow row,
                                                                 store::OperationRow operation) {
  auto snapshot =
      co_await store_.snapshots.find_by_operation(operation.public_id, in(database_time));
  if (!snapshot) co_return Step::again;
  if (!*snapshot)
    co_return co_await close_operation(
        std::move(operation), "conflict", "the snapshot is not there any more");
  if ((*snapshot)->state != "creating")
    co_return co_await close_operation(std::move(operation), "", "");
  auto taken = co_await links_.at((*snapshot)->node_address).snapshots(in(worker_time));
  if (!taken) co_return Step::again;
  if (SPACE_FAULT("controller.snapshot.before_row")) co_return Step::again;
  for (auto const& one : *taken) {
    if (one.snapshot != (*snapshot)->public_id) continue;
    auto const settled =
        co_await store_.snapshots.settle((*snapshot)->id, one.bytes, in(database_time));
    co_return settled ? Step::done : Step::again;
  }
  auto const failed = co_await store_.snapshots.fail(
      (*snapshot)->id,
      "unavailable",
      fmt::format("what worked on the snapshot of {} did not finish; take it again",
                  row.public_id.empty() ? operation.sandbox : row.public_id),
      in(database_time));
  co_return failed ? Step::done : Step::again;
}

}  // namespace controller
