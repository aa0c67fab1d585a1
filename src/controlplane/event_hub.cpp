#include "controlplane/event_hub.hpp"

#include "base/log.hpp"

namespace controlplane {
namespace {

constexpr std::chrono::milliseconds tick{30};
constexpr std::size_t ring_max = 4096;
constexpr std::uint32_t read_max = 500;

}  // namespace

EventHub::EventHub(asio::any_io_executor executor, store::Events& events)
    : events_(events), poked_(executor), arrived_(executor) {}

asio::awaitable<void> EventHub::run() {
  bool complained = false;
  for (;;) {
    auto reading = read_once();
    bool const ok = co_await std::move(reading);
    if (!ok && !complained) base::log::warn("events_not_read");
    complained = !ok;
    auto waiting = poked_.wait();
    co_await async::run_until(base::system_clock().in(tick), std::move(waiting));
  }
}

asio::awaitable<bool> EventHub::read_once() {
  auto const deadline = base::system_clock().in(std::chrono::seconds(5));
  if (!started_) {
    auto end = co_await events_.end(deadline);
    if (!end) co_return false;
    head_ = ring_begin_ = *end;
    started_ = true;
    arrived_.notify_all();
  }
  for (;;) {
    auto rows = co_await events_.read(head_, read_max, deadline);
    if (!rows) co_return false;
    if (rows->empty()) co_return true;
    for (auto& row : *rows) {
      head_ = row.cursor;
      ring_.push_back(std::move(row));
    }
    while (ring_.size() > ring_max) {
      ring_begin_ = ring_.front().cursor;
      ring_.pop_front();
    }
    arrived_.notify_all();
    if (rows->size() < read_max) co_return true;
  }
}

async::Task<store::EventCursor> EventHub::head(base::Deadline deadline) {
  while (!started_) {
    if (base::system_clock().steady_now() >= deadline) {
      co_return base::fail(base::Code::unavailable,
                           "events cannot be read at the moment; try again");
    }
    auto waiting = arrived_.wait();
    auto const ended = co_await async::run_until(deadline, std::move(waiting));
    if (ended == async::Ended::cancelled)
      co_return base::fail(base::Code::cancelled, "the caller went away");
  }
  co_return head_;
}

bool EventHub::Feed::wants(store::EventRow const& event) const {
  return (project_id_.empty() || event.project_id == project_id_) &&
         (sandbox_.empty() || event.sandbox == sandbox_);
}

async::Task<std::vector<store::EventRow>> EventHub::Feed::catch_up() {
  // Read from the database after `head` was read there: nothing up to `head` can be missing.
  auto const head = hub_->head_;
  auto const deadline = base::system_clock().in(std::chrono::seconds(10));
  base::Result<std::vector<store::EventRow>> rows;
  if (project_id_.empty()) {
    rows = co_await hub_->events_.read(at_, read_max, deadline);
  } else {
    rows = co_await hub_->events_.read_of(project_id_, sandbox_, at_, read_max, deadline);
  }
  if (!rows) co_return base::passing(rows);
  bool const complete = rows->size() < read_max;
  if (!rows->empty()) at_ = rows->back().cursor;
  if (complete) at_ = std::max(at_, head);
  std::erase_if(*rows, [&](auto const& row) { return !wants(row); });
  co_return rows;
}

async::Task<std::vector<store::EventRow>> EventHub::Feed::next(base::Deadline until) {
  auto head = co_await hub_->head(until);
  if (!head) co_return base::passing(head);
  for (;;) {
    std::vector<store::EventRow> found;
    if (at_ < hub_->ring_begin_) {
      auto rows = co_await catch_up();
      if (!rows) co_return base::passing(rows);
      if (!rows->empty()) co_return rows;
      continue;
    }
    auto const first = std::ranges::upper_bound(hub_->ring_, at_, {}, &store::EventRow::cursor);
    for (auto one = first; one != hub_->ring_.end(); ++one) {
      if (wants(*one)) found.push_back(*one);
    }
    at_ = std::max(at_, hub_->head_);
    if (!found.empty() || base::system_clock().steady_now() >= until) co_return found;
    auto waiting = hub_->arrived_.wait();
    auto const ended = co_await async::run_until(until, std::move(waiting));
    if (ended == async::Ended::cancelled)
      co_return base::fail(base::Code::cancelled, "the caller went away");
  }
}

}  // namespace controlplane
