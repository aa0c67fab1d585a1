#pragma once

#include "base/clock.hpp"

#include <functional>
#include <memory>

#include <boost/asio/any_io_executor.hpp>

namespace async {

/// Rings once when its deadline passes, unless it was moved or cancelled before. For ending what
/// waits too long
/// (`ring` closes the stream) at a fraction of the price of with_deadline(): set() and cancel() are
/// two assignments as long as an earlier wait of the timer is still out, so a connection can set
/// one per request.
class Alarm {
 public:
  /// `ring` runs on the loop and must not destroy the Alarm.
  Alarm(boost::asio::any_io_executor executor, std::function<void()> ring);
  ~Alarm();
  Alarm(Alarm const&) = delete;
  Alarm& operator=(Alarm const&) = delete;

  /// Replaces the deadline before.
  void set(base::Deadline at);
  void cancel() noexcept;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace async
