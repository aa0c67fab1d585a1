#include "worker/ended_log.hpp"

namespace worker {

void EndedLog::add(JournalEntry entry) {
  auto const newest = newest_.find(entry.sandbox);
  auto const* known = newest == newest_.end() ? nullptr : find(entry.sandbox);
  ++last_;
  if (!known || known->epoch <= entry.epoch) newest_[entry.sandbox] = last_;
  ends_.push_back({last_, std::move(entry)});
  changed_.notify_all();
}

JournalEntry const* EndedLog::find(std::string const& sandbox) const {
  auto const found = newest_.find(sandbox);
  if (found == newest_.end() || ends_.empty() || found->second < ends_.front().number)
    return nullptr;
  return &ends_[found->second - ends_.front().number].entry;
}

std::vector<JournalEntry> EndedLog::expire(base::WallTime now) {
  auto const oldest =
      std::chrono::duration_cast<std::chrono::milliseconds>((now - kept).time_since_epoch())
          .count();
  std::vector<JournalEntry> gone;
  while (!ends_.empty() &&
         (ends_.size() > kept_max || ends_.front().entry.ended_unix_ms < oldest)) {
    auto& first = ends_.front();
    auto const newest = newest_.find(first.entry.sandbox);
    bool const last_of_it = newest != newest_.end() && newest->second == first.number;
    if (last_of_it) {
      newest_.erase(newest);
      gone.push_back(std::move(first.entry));
    }
    ends_.pop_front();
  }
  return gone;
}

std::vector<EndedLog::Numbered> EndedLog::after(std::uint64_t number, std::size_t max) const {
  std::vector<Numbered> out;
  if (ends_.empty()) return out;
  auto const first = ends_.front().number;
  std::size_t at = number < first ? 0 : static_cast<std::size_t>(number - first + 1);
  for (; at < ends_.size() && out.size() < max; ++at)
    out.push_back(ends_[at]);
  return out;
}

wire::EndedSandbox to_wire(JournalEntry const& entry) {
  return {
      entry.sandbox, entry.epoch, entry.cause, entry.detail, entry.console_tail, entry.ended_at};
}

}  // namespace worker
