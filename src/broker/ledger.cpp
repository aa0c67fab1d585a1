#include "broker/ledger.hpp"

namespace broker {
namespace {

using std::chrono::seconds;

constexpr std::size_t forget_at_min = 1024;
constexpr std::int64_t day_seconds = 24 * 60 * 60;

std::int64_t seconds_of(base::WallTime time) {
  return std::chrono::duration_cast<seconds>(time.time_since_epoch()).count();
}

}  // namespace

std::int64_t Ledger::today() const {
  return seconds_of(clock_.wall_now()) / day_seconds;
}

Ledger::Verdict Ledger::judge(Count const& count, wire::SharedBudget const& budget) const {
  // A clock that was set back gives nothing back.
  bool const new_day = count.day < today();
  if (budget.requests_per_day && !new_day && count.of_day >= *budget.requests_per_day) {
    auto const left = day_seconds - seconds_of(clock_.wall_now()) % day_seconds;
    return {false, 0, "as often as it may be in a day", static_cast<std::uint32_t>(left)};
  }
  if (budget.concurrent && count.under_way >= *budget.concurrent)
    return {false, 0, "by as many requests at once as it may be", 0};
  if (budget.requests_per_s &&
      count.pace.wait(clock_.steady_now(), *budget.requests_per_s) > std::chrono::nanoseconds(0))
    return {false, 0, "as often as it may be in a second", 0};
  return {};
}

Ledger::Verdict Ledger::admit(std::span<Account const> accounts) {
  // Whoever is counted already goes on, however many others came since.
  auto const fresh = static_cast<std::size_t>(std::ranges::count_if(
      accounts, [&](Account const& account) { return !counts_.contains(account.id); }));
  if (fresh > 0 && counts_.size() + fresh > forget_at_) forget_idle();
  if (fresh > 0 && counts_.size() + fresh > accounts_max)
    return {false, 0, "by more than can be counted", 0};
  for (std::size_t i = 0; i < accounts.size(); ++i) {
    auto const found = counts_.find(accounts[i].id);
    auto verdict = judge(found == counts_.end() ? Count{} : found->second, accounts[i].budget);
    verdict.refused_by = i;
    if (!verdict.admitted) return verdict;
  }
  auto const now = clock_.steady_now();
  for (auto const& [id, budget] : accounts) {
    auto& count = counts_[id];
    if (budget.requests_per_s) count.pace.charge(now, *budget.requests_per_s);
    if (budget.concurrent) ++count.under_way;
    if (!budget.requests_per_day) continue;
    if (count.day < today()) count.of_day = 0;
    count.day = std::max(count.day, today());
    ++count.of_day;
    ++day_uses_;
  }
  return {};
}

std::vector<DayUse> Ledger::days() const {
  std::vector<DayUse> out;
  for (auto const& [id, count] : counts_)
    if (count.of_day > 0 && count.day >= today()) out.push_back({id, count.day, count.of_day});
  return out;
}

void Ledger::restore(std::vector<DayUse> const& days) {
  for (auto const& one : days) {
    if (one.day < today() || counts_.size() >= accounts_max) continue;
    auto& count = counts_[one.id];
    count.day = one.day;
    count.of_day = one.count;
  }
}

void Ledger::release(std::string const& id) {
  auto const found = counts_.find(id);
  if (found != counts_.end() && found->second.under_way > 0) --found->second.under_way;
}

/// What is whole again; what is counted for a day stays for the day.
void Ledger::forget_idle() {
  auto const now = clock_.steady_now();
  std::erase_if(counts_, [&](auto const& pair) {
    auto const& count = pair.second;
    return count.pace.idle(now) && count.under_way == 0 && count.day < today();
  });
  forget_at_ = std::clamp<std::size_t>(2 * counts_.size(), forget_at_min, accounts_max);
}

}  // namespace broker
