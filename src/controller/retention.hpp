#pragma once

#include "controller/worker_link.hpp"
#include "store/store.hpp"

/// Drops what is old: a round every few minutes, each in small statements.
namespace controller {

struct Keep {
  std::chrono::hours history{24 * 30};
  std::chrono::hours operations{24 * 30};
  std::chrono::hours events{24 * 7};
  std::chrono::hours key_uses{24 * 90};
  std::chrono::hours metrics{6};
  std::chrono::milliseconds snapshots_every{2000};
};

class Retention {
 public:
  Retention(store::Store& store, WorkerLinks& links, Keep keep)
      : store_(store), links_(links), keep_(keep) {}

  store::asio::awaitable<void> run();
  /// One round; public for tests.
  store::asio::awaitable<void> round();
  /// Snapshots that expired, or whose delete was not finished: their files, then their rows.
  store::asio::awaitable<void> run_snapshots();

 private:
  store::asio::awaitable<void> drop_snapshots();

  store::Store& store_;
  WorkerLinks& links_;
  Keep keep_;
};

}  // namespace controller
