#pragma once

#include "async/task.hpp"
#include "audit/checkpoint.hpp"
#include "audit/reader.hpp"
#include "wire/worker.hpp"

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace worker {

std::int64_t micros_of(base::WallTime time);

/// Decisions of all gateways of this host on their way into the audit log, and to those who watch.
/// A record is on disk within about a second. When the log cannot be written the feed is broken for
/// the rest of this process's life: a network that leaves no record is switched off by its link.
class AuditFeed {
 public:
  AuditFeed(boost::asio::any_io_executor executor, std::string directory);

  /// With the node's name its checkpoints are signed with the key in `key_path`.
  async::Task<void> open(std::string node = {}, std::string key_path = {});
  /// unavailable without a name.
  async::Task<wire::AuditCheckpoints> checkpoints(std::uint64_t after) const;
  /// `record`: one JSON object on one line.
  void add(std::string const& sandbox, std::string record);

  /// Has it as many records waiting as one sandbox may have? Whoever brings its next one waits for
  /// room first: else one that is loud would break the feed, and the network of all others with it.
  bool crowded(std::string const& sandbox) const;
  /// False when there was none for long.
  boost::asio::awaitable<bool> wait_room(std::string sandbox);

  /// Of what is on disk.
  async::Task<audit::Page> page(audit::Query query) const;

  bool broken() const noexcept { return broken_; }

  boost::asio::awaitable<void> wait_broken();

  /// Writes what comes until cancelled.
  boost::asio::awaitable<void> run();
  /// Writes what is left.
  boost::asio::awaitable<void> close();

  struct Numbered {
    std::uint64_t number = 0;
    std::string sandbox;
    std::string record;
  };

  /// Of the latest records, those of one sandbox after a number; and the number to go on from.
  std::vector<Numbered> after(std::uint64_t number, std::string const& sandbox) const;

  std::uint64_t last() const noexcept { return last_; }

  /// Records that nobody has begun to write yet.
  std::size_t waiting() const noexcept { return waiting_.size(); }

  boost::asio::awaitable<void> wait() { return changed_.wait(); }

 private:
  boost::asio::awaitable<void> write_out(bool last = false);
  boost::asio::awaitable<void> retire_sometimes();
  boost::asio::awaitable<void> wait_while_crowded(std::string const* sandbox);

  std::string directory_;
  std::shared_ptr<audit::Log> log_;  // shared: a write that is under way keeps it
  std::shared_ptr<audit::Checkpoints> checkpoints_;
  std::deque<std::string> waiting_;
  std::map<std::string, std::size_t> waiting_of_;  // how many of them, by sandbox
  std::deque<Numbered> latest_;
  std::uint64_t last_ = 0;
  bool broken_ = false;
  base::SteadyTime retire_at_{};
  async::Signal changed_;
  async::Signal broke_;
};

}  // namespace worker
