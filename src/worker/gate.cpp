#include "worker/gate.hpp"

namespace worker {

struct Gate::Pass::Impl {
  Impl(boost::asio::any_io_executor executor, std::size_t wide)
      : width(wide), changed(std::move(executor)) {}

  std::size_t width;
  std::size_t inside = 0;
  std::deque<int*> queue;  // each waiter's place is the address of its own marker
  async::Signal changed;
};

Gate::Gate(boost::asio::any_io_executor executor, std::size_t width)
    : impl_(std::make_shared<Pass::Impl>(std::move(executor), std::max<std::size_t>(width, 1))) {}

Gate::Pass::~Pass() {
  if (!impl_) return;
  --impl_->inside;
  impl_->changed.notify_all();
}

boost::asio::awaitable<Gate::Pass> Gate::enter() {
  auto const impl = impl_;
  int place = 0;
  impl->queue.push_back(&place);
  // Leaves the queue however this ends; the next one looks again then.
  auto leave = std::shared_ptr<void>(nullptr, [impl, mine = &place](void*) {
    std::erase(impl->queue, mine);
    impl->changed.notify_all();
  });
  while (impl->queue.front() != &place || impl->inside >= impl->width)
    co_await impl->changed.wait();
  ++impl->inside;
  co_return Pass(impl);
}

std::size_t Gate::waiting() const noexcept {
  return impl_->queue.size();
}

}  // namespace worker
