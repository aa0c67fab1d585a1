#pragma once

#include "store/store.hpp"

/// Drops what is old: a round every few minutes, each in small statements.
namespace controller {

struct Keep {
  std::chrono::hours history{24 * 30};
  std::chrono::hours operations{24 * 30};
  std::chrono::hours events{24 * 7};
  std::chrono::hours key_uses{24 * 90};
  std::chrono::hours metrics{6};
};

class Retention {
 public:
  Retention(store::Store& store, Keep keep) : store_(store), keep_(keep) {}

  store::asio::awaitable<void> run();
  /// One round; public for tests.
  store::asio::awaitable<void> round();

 private:
  store::Store& store_;
  Keep keep_;
};

}  // namespace controller
