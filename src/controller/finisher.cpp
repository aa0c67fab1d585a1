#include "controller/finisher.hpp"

#include "base/fault.hpp"
#include "base/log.hpp"
#include "controller/backoff.hpp"

namespace controller {
namespace {

using namespace std::chrono_literals;
using domain::EndReason;
using domain::SandboxEvent;
using domain::SandboxState;

constexpr auto database_time = 5s;
constexpr auto worker_time = 5s;
constexpr auto worker_remove_time = 15s;

base::Deadline in(std::chrono::milliseconds duration) {
  return base::system_clock().in(duration);
}

bool is_over(base::Deadline until) {
  return base::system_clock().steady_now() >= until;
}

}  // namespace

store::asio::awaitable<void> Finisher::finish_delete(store::SandboxRow row, base::Deadline until) {
  Backoff backoff;
  while (!is_over(until)) {
    bool const refused = SPACE_FAULT("controller.delete.before_worker");
    auto removed = co_await links_.at(row.node_address)
                       .remove(row.public_id, row.epoch, in(worker_remove_time));
    if (removed && !refused) {
      if (SPACE_FAULT("controller.delete.before_row")) co_return;
      store::End end;
      end.id = row.id;
      end.event = SandboxEvent::released;
      end.epoch = row.epoch;
      end.actor = "controller";
      end.console_tail = std::move(removed->console_tail);
      auto const ended = co_await store_.sandboxes.end(std::move(end), in(database_time));
      if (ended) {
        base::log::info(
            "delete_finished",
            {{"sandbox", row.public_id}, {"reason", row.end_reason}, {"by_us", *ended}});
        co_return;
      }
    } else if (!removed && removed.error().code() == base::Code::conflict) {
      // The worker knows a newer life than our row: the row we hold is old, whoever is newer goes
      // on.
      base::log::warn("delete_superseded", {{"sandbox", row.public_id}, {"epoch", row.epoch}});
      co_return;
    }
    co_await async::sleep_for(backoff.next());
  }
  base::log::warn("delete_waits", {{"sandbox", row.public_id}, {"node", row.node}});
}

store::asio::awaitable<void> Finisher::take_over(store::OperationRow operation,
                                                 base::Deadline until) {
  base::log::warn("operation_taken_over",
                  {{"operation", operation.public_id},
                   {"kind", operation.kind},
                   {"sandbox", operation.sandbox},
                   {"attempts", operation.attempts}});
  Backoff backoff;
  while (!is_over(until)) {
    auto const step = co_await try_take_over(operation, until);
    if (step == Step::done) co_return;
    co_await async::sleep_for(backoff.next());
  }
}

store::asio::awaitable<Finisher::Step> Finisher::try_take_over(store::OperationRow operation,
                                                               base::Deadline until) {
  auto row = co_await store_.sandboxes.find_live(operation.sandbox, in(database_time));
  if (!row) co_return Step::again;
  bool const lives = row->has_value();
  if (operation.kind == "sandbox.delete") {
    if (!lives) co_return co_await close_operation(std::move(operation), "", "");
    if ((*row)->state != SandboxState::deleting)
      co_return co_await decide_end(std::move(**row), std::move(operation), until);
    co_await finish_delete(std::move(**row), until);
    co_return Step::done;
  }
  if (operation.kind == "sandbox.create") {
    if (!lives)
      co_return co_await close_operation(
          std::move(operation), "conflict", "the sandbox ended while it was being created");
    if ((*row)->state == SandboxState::creating)
      co_return co_await settle_create(std::move(**row), std::move(operation));
    if ((*row)->state == SandboxState::deleting) {
      co_return co_await close_operation(
          std::move(operation), "conflict", "the sandbox was deleted while it was being created");
    }
    co_return co_await close_operation(std::move(operation), "", "");
  }
  if (operation.kind == "sandbox.snapshot")
    co_return co_await settle_snapshot(lives ? std::move(**row) : store::SandboxRow(),
                                       std::move(operation));
  if (lives && (operation.kind == "sandbox.pause" || operation.kind == "sandbox.resume" ||
                operation.kind == "sandbox.suspend"))
    co_return co_await settle_move(std::move(**row), std::move(operation));
  if (!lives)
    co_return co_await close_operation(
        std::move(operation), "conflict", "the sandbox has ended meanwhile");
  co_return co_await close_operation(
      std::move(operation), "unavailable", "the program that worked on this has ended; ask again");
}

store::asio::awaitable<Finisher::Step> Finisher::settle_create(store::SandboxRow row,
                                                               store::OperationRow operation) {
  auto found = co_await links_.at(row.node_address).find(row.public_id, in(worker_time));
  if (!found) co_return Step::again;
  auto& machine = *found;
  if (!machine || machine->epoch < row.epoch) co_return co_await undo_create(std::move(row));
  if (machine->epoch > row.epoch) co_return Step::done;  // somebody moved it on; our row is old
  if (machine->state == "running")
    co_return co_await finish_create(std::move(row), std::move(operation), std::move(*machine));
  co_return Step::again;  // starting or ending: the worker will have an answer
}

store::asio::awaitable<Finisher::Step> Finisher::undo_create(store::SandboxRow row) {
  // Not there now is not enough: the request may be on its way. After this the worker refuses it.
  auto removed =
      co_await links_.at(row.node_address).remove(row.public_id, row.epoch, in(worker_remove_time));
  if (!removed && removed.error().code() == base::Code::conflict) co_return Step::done;
  if (!removed) co_return Step::again;
  if (SPACE_FAULT("controller.create.before_undo")) co_return Step::again;
  store::End end;
  end.id = row.id;
  end.event = SandboxEvent::start_failed;
  end.epoch = row.epoch;
  end.actor = "controller";
  end.reason = EndReason::start_failed;
  end.detail = "what worked on its start did not finish, and nothing of it runs; create it again";
  auto const ended = co_await store_.sandboxes.end(std::move(end), in(database_time));
  if (!ended) co_return Step::again;
  base::log::info("create_undone", {{"sandbox", row.public_id}, {"by_us", *ended}});
  co_return Step::done;
}

store::asio::awaitable<Finisher::Step> Finisher::finish_create(store::SandboxRow row,
                                                               store::OperationRow operation,
                                                               wire::WorkerSandbox machine) {
  if (SPACE_FAULT("controller.create.before_finish")) co_return Step::again;
  store::Change change;
  change.id = row.id;
  change.from = SandboxState::creating;
  change.event = SandboxEvent::started;
  change.epoch = row.epoch;
  change.actor = "controller";
  change.operation = operation.public_id;
  change.timeline = wire::encode(machine.timeline);
  auto const changed = co_await store_.sandboxes.apply(std::move(change), in(database_time));
  if (!changed) co_return Step::again;
  base::log::info("create_finished", {{"sandbox", row.public_id}, {"by_us", changed->applied}});
  co_return Step::done;
}

store::asio::awaitable<Finisher::Step> Finisher::decide_end(store::SandboxRow row,
                                                            store::OperationRow operation,
                                                            base::Deadline until) {
  store::Change change;
  change.id = row.id;
  change.from = row.state;
  change.event = SandboxEvent::end;
  change.actor = operation.actor;
  change.reason = EndReason::user;
  auto changed = co_await store_.sandboxes.apply(std::move(change), in(database_time));
  if (!changed || !changed->applied || !changed->now) co_return Step::again;
  co_await finish_delete(std::move(*changed->now), until);
  co_return Step::done;
}

store::asio::awaitable<Finisher::Step> Finisher::close_operation(store::OperationRow operation,
                                                                 std::string code,
                                                                 std::string message) {
  auto const finished = co_await store_.operations.finish(
      operation.public_id, std::move(code), std::move(message), in(database_time));
  co_return finished ? Step::done : Step::again;
}

}  // namespace controller
