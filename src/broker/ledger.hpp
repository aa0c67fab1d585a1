#pragma once

#include "base/clock.hpp"
#include "domain/pace.hpp"
#include "wire/policy.hpp"

#include <map>
#include <span>

namespace broker {

/// What an account has used up of a day: what a restart must not give back.
struct DayUse {
  std::string id;
  std::int64_t day = 0;  // since the epoch
  std::uint64_t count = 0;

  static bool required(std::string_view) { return true; }
};
BOOST_DESCRIBE_STRUCT(DayUse, (), (id, day, count))

/// Counts what many gateways of a node do together: uses of a credential, requests of a project or
/// an organisation. No I/O. Who is counted is told apart by an id; how much it may be is said with
/// each question, so a new limit holds at once and refills nothing.
class Ledger {
 public:
  /// One of those that a request needs.
  struct Account {
    std::string id;
    wire::SharedBudget budget;
  };

  struct Verdict {
    bool admitted = true;
    std::size_t refused_by = 0;  // when not: which of the accounts
    std::string_view why;        // … and what of it: a sentence's end
    std::uint32_t later_s = 0;   // so long it stays so; 0: less than a second, or nobody knows
  };

  /// So many are counted at once; more are refused.
  static constexpr std::size_t accounts_max = 64 * 1024;

  explicit Ledger(base::Clock const& clock) : clock_(clock) {}

  /// All of them or none: what one refuses costs the others nothing.
  Verdict admit(std::span<Account const> accounts);
  /// A request is over that was admitted by an account with `concurrent`.
  void release(std::string const& id);

  /// Of days that are not over.
  std::vector<DayUse> days() const;

  /// Grows with each use that a day's budget counts.
  std::uint64_t day_uses() const noexcept { return day_uses_; }

  /// What the process before this one counted; once, before anything is admitted.
  void restore(std::vector<DayUse> const& days);

  std::size_t size() const noexcept { return counts_.size(); }

 private:
  struct Count {
    domain::Pace pace;
    std::uint32_t under_way = 0;
    std::int64_t day = 0;  // since the epoch
    std::uint64_t of_day = 0;
  };

  Verdict judge(Count const& count, wire::SharedBudget const& budget) const;
  void forget_idle();
  std::int64_t today() const;

  base::Clock const& clock_;
  std::map<std::string, Count> counts_;
  std::size_t forget_at_ = 1024;
  std::uint64_t day_uses_ = 0;
};

}  // namespace broker
