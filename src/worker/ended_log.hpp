#pragma once

#include "async/task.hpp"
#include "base/clock.hpp"
#include "worker/journal.hpp"

#include <deque>
#include <map>

namespace worker {

/// Lives that are over, for 10 minutes and at most 10,000 of them: for those who follow the ends,
/// and to refuse a late request that belongs to one of them. One thread.
class EndedLog {
 public:
  static constexpr std::chrono::minutes kept{10};
  static constexpr std::size_t kept_max = 10'000;

  explicit EndedLog(boost::asio::any_io_executor executor) : changed_(std::move(executor)) {}

  /// `entry.phase` is "ended". A later life of the same sandbox replaces an earlier one for find().
  void add(JournalEntry entry);
  /// The newest life of that sandbox that is over.
  JournalEntry const* find(std::string const& sandbox) const;
  /// Takes out what is older than `kept` before `now`, or too much: their journal files may go.
  std::vector<JournalEntry> expire(base::WallTime now);

  /// Numbers grow by one with each end. Followers ask for what comes after the last number they
  /// saw.
  struct Numbered {
    std::uint64_t number = 0;
    JournalEntry entry;
  };

  std::vector<Numbered> after(std::uint64_t number, std::size_t max) const;

  boost::asio::awaitable<void> wait() { return changed_.wait(); }

 private:
  std::deque<Numbered> ends_;
  std::map<std::string, std::uint64_t> newest_;
  std::uint64_t last_ = 0;
  async::Signal changed_;
};

wire::EndedSandbox to_wire(JournalEntry const& entry);

}  // namespace worker
