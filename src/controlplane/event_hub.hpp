#pragma once

#include "store/events.hpp"

#include <deque>

/// The one reader of the outbox in this process. It keeps the last few thousand events in memory
/// and wakes whoever follows them; who is further back reads from the database until it has caught
/// up.
namespace controlplane {

namespace asio = boost::asio;

class EventHub {
 public:
  EventHub(asio::any_io_executor executor, store::Events& events);

  /// Until cancelled.
  asio::awaitable<void> run();

  /// Something was just committed here: read now instead of at the next tick.
  void poke() noexcept { poked_.notify_all(); }

  /// The place behind the newest event that was read. Waits for the first read after the start.
  async::Task<store::EventCursor> head(base::Deadline deadline);

  /// One follower's place and what it wants to see. A value of this type must not outlive the hub.
  class Feed {
   public:
    /// `project_id` "" follows all projects; `sandbox` "" all sandboxes.
    Feed(EventHub& hub, std::string project_id, std::string sandbox, store::EventCursor from)
        : hub_(&hub), project_id_(std::move(project_id)), sandbox_(std::move(sandbox)), at_(from) {}

    /// The next events, in order; empty when none came until `until`.
    async::Task<std::vector<store::EventRow>> next(base::Deadline until);

    store::EventCursor at() const noexcept { return at_; }

   private:
    bool wants(store::EventRow const& event) const;
    async::Task<std::vector<store::EventRow>> catch_up();
    EventHub* hub_;
    std::string project_id_;
    std::string sandbox_;
    store::EventCursor at_;
  };

 private:
  friend class Feed;
  asio::awaitable<bool> read_once();

  store::Events& events_;
  async::Signal poked_;
  async::Signal arrived_;
  std::deque<store::EventRow> ring_;
  store::EventCursor ring_begin_;  // everything after this place is in the ring
  store::EventCursor head_;
  bool started_ = false;
};

}  // namespace controlplane
