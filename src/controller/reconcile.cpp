#include "controller/reconcile.hpp"

#include <algorithm>

namespace controller {

using domain::SandboxState;

namespace {

/// "" when row and machine agree, or somebody is at work on them.
std::string way_to_agree(SandboxState row, std::string_view machine) {
  bool const at_rest = row == SandboxState::running || row == SandboxState::paused;
  if (at_rest && machine == "suspended") return "suspended";
  bool const awake = machine == "running" || machine == "paused";
  if (row == SandboxState::suspended && awake) return "suspend";
  if (row == SandboxState::running && machine == "paused") return "resume";
  if (row == SandboxState::paused && machine == "running") return "pause";
  return {};
}

}  // namespace

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
    auto const row = rows.find(machine.sandbox);
    if (row == rows.end()) judge_without_row(machine, look, now, plan);
    if (row != rows.end()) judge(machine, *row->second, now, plan);
  }
  for (auto const& row : look.rows) {
    // Creating and restoring rows belong to an operation; its lease says when they are left behind.
    bool const under_way =
        row.state == SandboxState::creating || row.state == SandboxState::restoring;
    if (row.node != node_ || under_way || domain::is_terminal(row.state)) continue;
    auto const machine = machines.find(row.public_id);
    judge(row, machine == machines.end() ? nullptr : machine->second, now, plan);
  }
  // Remembered as long as it has a row.
  std::erase_if(seen_, [&](auto const& one) { return !rows.contains(one.first); });
  for (auto const& machine : look.machines)
    seen_.emplace(machine.sandbox, machine.epoch);

  // What was not suspected in this look starts from zero when it is suspected again.
  std::erase_if(suspects_, [&](auto const& one) { return one.second.look != looks_; });
  return plan;
}

/// What runs is reached by nobody and costs memory. What is at rest costs room alone, and is more
/// than can be made again: it goes only when the database says that it has ended.
void Reconciler::judge_without_row(wire::WorkerSandbox const& machine,
                                   Look const& look,
                                   base::SteadyTime now,
                                   Plan& plan) {
  if (machine.state == "ending") return;
  auto const suspicion = fmt::format("no row/{}/{}", machine.sandbox, machine.epoch);
  if (!confirmed(suspicion, now, confirm_after_)) return;
  bool const at_rest =
      machine.state == "suspended" || machine.state == "suspending" || machine.state == "restoring";
  if (at_rest && !look.ended.contains(machine.sandbox) && !look.released) {
    plan.unclaimed.push_back(machine.sandbox);
    return;
  }
  plan.kill.push_back({machine.sandbox, machine.epoch, "it has no row"});
}

void Reconciler::judge(wire::WorkerSandbox const& machine,
                       store::SandboxRow const& row,
                       base::SteadyTime now,
                       Plan& plan) {
  if (machine.state == "ending") return;
  auto const suspicion = [&](std::string_view what) {
    return fmt::format("{}/{}/{}", what, machine.sandbox, machine.epoch);
  };
  // A suspended one has the epoch of the life that was suspended; the next life is greater from the
  // moment it is asked for. Our row may also be older than the worker's: then another controller
  // knows more, and it is left alone.
  if (row.epoch <= machine.epoch || machine.state == "suspended") return;
  if (confirmed(suspicion("old"), now, confirm_after_))
    plan.kill.push_back({machine.sandbox, row.epoch, "its epoch is over"});
}

void Reconciler::judge(store::SandboxRow const& row,
                       wire::WorkerSandbox const* machine,
                       base::SteadyTime now,
                       Plan& plan) {
  auto const suspicion = [&](std::string_view what) {
    return fmt::format("{}/{}/{}", what, row.public_id, row.epoch);
  };
  bool const there = machine && machine->epoch == row.epoch;
  if (row.state == SandboxState::deleting) {
    if (confirmed(suspicion("deleting"), now, 5 * confirm_after_)) plan.finish.push_back(row);
    return;
  }
  if (row.state == SandboxState::suspended && !machine) {
    // A list without it may be that of a worker that still looks around.
    if (confirmed(suspicion("lost"), now, 5 * confirm_after_)) plan.vanished.push_back(row);
    return;
  }
  bool const new_problem =
      row.state == SandboxState::suspended && !machine->lost_reason.empty() && row.problem.empty();
  if (new_problem) plan.problems.push_back({row.id, machine->lost_reason});
  auto const how = there ? way_to_agree(row.state, machine->state) : std::string();
  if (!how.empty() && confirmed(suspicion(how), now, confirm_after_))
    plan.align.push_back({row, how});
  bool const gone = !there && row.state != SandboxState::suspended;
  if (gone && confirmed(suspicion("vanished"), now, confirm_after_)) plan.vanished.push_back(row);
}

bool Reconciler::confirmed(std::string const& suspicion,
                           base::SteadyTime now,
                           std::chrono::milliseconds age) {
  auto const [place, fresh] = suspects_.try_emplace(suspicion, Suspect{now, looks_});
  place->second.look = looks_;
  return !fresh && now - place->second.since >= age;
}

}  // namespace controller
