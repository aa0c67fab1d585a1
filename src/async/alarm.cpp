#include "async/alarm.hpp"

#include <boost/asio/steady_timer.hpp>

namespace async {

struct Alarm::Impl : std::enable_shared_from_this<Alarm::Impl> {
  Impl(boost::asio::any_io_executor executor, std::function<void()> on_ring)
      : timer(std::move(executor)), ring(std::move(on_ring)) {}

  void wait(base::Deadline at) {
    waits_until = at;
    timer.expires_at(at);  // ends the wait before, whose handler then sees an error
    timer.async_wait([self = shared_from_this()](boost::system::error_code error) {
      if (!error) self->expired();
    });
  }

  void expired() {
    waits_until = base::Deadline::max();
    if (deadline == base::Deadline::max() || !ring) return;
    if (deadline > base::system_clock().steady_now())
      return wait(deadline);  // it was moved meanwhile
    deadline = base::Deadline::max();
    ring();
  }

  boost::asio::steady_timer timer;
  std::function<void()> ring;
  base::Deadline deadline = base::Deadline::max();     // max: not set
  base::Deadline waits_until = base::Deadline::max();  // of the wait that is out; max: none
};

Alarm::Alarm(boost::asio::any_io_executor executor, std::function<void()> ring)
    : impl_(std::make_shared<Impl>(std::move(executor), std::move(ring))) {}

Alarm::~Alarm() {
  impl_->ring = nullptr;
  impl_->timer.cancel();
}

void Alarm::set(base::Deadline at) {
  impl_->deadline = at;
  if (at < impl_->waits_until) impl_->wait(at);
}

void Alarm::cancel() noexcept {
  impl_->deadline = base::Deadline::max();
}

}  // namespace async
