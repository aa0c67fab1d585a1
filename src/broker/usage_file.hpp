#pragma once

#include "async/task.hpp"
#include "broker/ledger.hpp"

namespace broker {

/// Keeps a ledger's days in a file of the broker's own, so that a restart gives no day's budget
/// back but what the last seconds used.
class UsageFile {
 public:
  UsageFile(std::string path, Ledger& ledger) : path_(std::move(path)), ledger_(ledger) {}

  /// What the process before this one kept; once, before anything is admitted. Nothing is restored
  /// of a file that is not whole.
  base::Result<void> load();
  /// Writes it when there is something new.
  async::Task<void> keep();
  /// Keeps it every few seconds, until cancelled.
  boost::asio::awaitable<void> run();

 private:
  std::string path_;
  Ledger& ledger_;
  std::uint64_t kept_ = 0;  // of day_uses()
};

}  // namespace broker
