#include "controller/reconcile.hpp"

#include <algorithm>

namespace controller {

using domain::SandboxState;

Plan Reconciler::look(Look const& look, base::SteadyTime now) {
  ++looks_;
  Plan plan;
  std::map<std::string_view, store::SandboxRow const*> rows;
  for (auto const& row : look.rows)
    rows[row.public_id] = &row;
  std::map<std::string_view, wire::WorkerSandbox const*> machines;
  for (auto const& machine : look.machines)
    machines[machine.sandbox] = &machine;

  for (auto const& machine : look.machines) {
    if (machine.state == "ending") continue;
    auto const row = rows.find(machine.sandbox);
    auto const suspicion = [&](std::string_view what) {
      return fmt::format("{}/{}/{}", what, machine.sandbox, machine.epoch);
    };
    if (row == rows.end()) {
      if (confirmed(suspicion("no row"), now, confirm_after_)) {
        plan.kill.push_back({machine.sandbox, machine.epoch, "it has no row"});
      }
    } else if (row->second->epoch > machine.epoch) {
      if (confirmed(suspicion("old"), now, confirm_after_)) {
        plan.kill.push_back({machine.sandbox, row->second->epoch, "its epoch is over"});
      }
    }
    // Our row may also be older than the worker's: then another controller knows more, and it is
    // left alone.
  }

  for (auto const& row : look.rows) {
    // Creating and restoring rows belong to an operation; its lease says when they are left behind.
    bool const under_way =
        row.state == SandboxState::creating || row.state == SandboxState::restoring;
    if (row.node != node_ || under_way || !domain::holds_machine(row.state)) continue;
    auto const suspicion = [&](std::string_view what) {
      return fmt::format("{}/{}/{}", what, row.public_id, row.epoch);
    };
    if (row.state == SandboxState::deleting) {
      if (confirmed(suspicion("deleting"), now, 5 * confirm_after_)) plan.finish.push_back(row);
      continue;
    }
    auto const machine = machines.find(row.public_id);
    bool const there = machine != machines.end() && machine->second->epoch == row.epoch;
    if (!there && confirmed(suspicion("vanished"), now, confirm_after_))
      plan.vanished.push_back(row);
  }

  // What was not suspected in this look starts from zero when it is suspected again.
  std::erase_if(suspects_, [&](auto const& one) { return one.second.look != looks_; });
  return plan;
}

bool Reconciler::confirmed(std::string const& suspicion,
                           base::SteadyTime now,
                           std::chrono::milliseconds age) {
  auto const [place, fresh] = suspects_.try_emplace(suspicion, Suspect{now, looks_});
  place->second.look = looks_;
  return !fresh && now - place->second.since >= age;
}

}  // namespace controller
