#pragma once

#include "base/clock.hpp"
#include "store/sandboxes.hpp"
#include "wire/worker.hpp"

#include <map>
#include <set>
#include <string>
#include <vector>

/// What to do when a worker's list and the rows disagree. Pure: the caller asks both sides and
/// carries the plan out. Nothing is done on one look: a difference counts when two looks,
/// `confirm_after` apart, agree. Each look must have an answer of the worker *and then* one of the
/// database; without the database there is no look, hence nothing is ever killed while it cannot be
/// asked.
namespace controller {

/// One look at one node.
struct Look {
  /// The worker's list; it was asked before the database.
  std::vector<wire::WorkerSandbox> machines;
  /// Live rows of this node, and live rows of other nodes for the ids in `machines`.
  std::vector<store::SandboxRow> rows = {};
  /// Of `machines`, those that the database says have ended.
  std::set<std::string> ended = {};
  /// An administrator has said that what the database never heard of may go.
  bool released = false;
};

struct Plan {
  struct Kill {
    std::string sandbox;
    std::uint64_t
        epoch;  // the newest that somebody knows; a worker refuses an older one than its own
    std::string why;
    friend bool operator==(Kill const&, Kill const&) = default;
  };

  std::vector<Kill> kill;
  /// At rest, and the database has never heard of them: they are another database's, or this one is
  /// an older copy of itself. Their files are the only ones there are, so nobody takes them away
  /// unasked. docs/decisions/0015-unclaimed.md
  std::vector<std::string> unclaimed;
  /// Rows whose machine is not there, and rows whose suspended state is not.
  std::vector<store::SandboxRow> vanished;

  /// Both sides are there and do not agree: what the worker is to be told, or the row.
  struct Align {
    store::SandboxRow row;
    /// suspend, pause, resume: for the worker. "suspended": the row follows.
    std::string how;
  };

  std::vector<Align> align;

  struct Problem {
    std::string id;  // of the row
    std::string why;
  };

  /// Suspended rows whose worker knows something against their state that the row does not say.
  std::vector<Problem> problems;
  /// Rows that stay in `deleting`: their program died. Waited for five times as long, since a
  /// delete may be at work and its operation's lease normally brings it here.
  std::vector<store::SandboxRow> finish;
};

class Reconciler {
 public:
  Reconciler(std::string node, std::chrono::milliseconds confirm_after)
      : node_(std::move(node)), confirm_after_(confirm_after) {}

  Plan look(Look const& look, base::SteadyTime now);

  /// Was that life ever seen on its worker?
  bool has_seen(std::string const& sandbox, std::uint64_t epoch) const {
    return seen_.contains({sandbox, epoch});
  }

  /// The worker was not reachable or was started anew: what was seen before proves nothing.
  void forget() { suspects_.clear(); }

 private:
  void judge(wire::WorkerSandbox const& machine,
             store::SandboxRow const& row,
             base::SteadyTime now,
             Plan& plan);
  void judge_without_row(wire::WorkerSandbox const& machine,
                         Look const& look,
                         base::SteadyTime now,
                         Plan& plan);
  void judge(store::SandboxRow const& row,
             wire::WorkerSandbox const* machine,
             base::SteadyTime now,
             Plan& plan);
  /// True once the same suspicion was there in every look for `age`.
  bool confirmed(std::string const& suspicion, base::SteadyTime now, std::chrono::milliseconds age);

  std::string node_;
  std::chrono::milliseconds confirm_after_;

  struct Suspect {
    base::SteadyTime since;
    std::uint64_t look;
  };

  std::map<std::string, Suspect> suspects_;
  std::uint64_t looks_ = 0;
  std::set<std::pair<std::string, std::uint64_t>> seen_;
};

}  // namespace controller
