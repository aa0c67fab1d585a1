#pragma once

#include "store/keys.hpp"

/// Who used which key for what, collected in memory and written about once a second in one
/// statement. Changes and refusals become rows; plain reads only move last_used_at. What a crash
/// loses is this last second of it: what was *changed* is in events and operations, written with
/// the change itself.
namespace controlplane {

namespace asio = boost::asio;

class Audit {
 public:
  explicit Audit(store::Keys& keys) : keys_(keys) {}

  void add(store::KeyUse use);
  /// Until cancelled.
  asio::awaitable<void> run();
  /// Writes what is waiting, now.
  asio::awaitable<void> flush();

 private:
  store::Keys& keys_;
  std::vector<store::KeyUse> waiting_;
  std::size_t lost_ = 0;
};

}  // namespace controlplane
