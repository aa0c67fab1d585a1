#pragma once

#include "async/task.hpp"

#include <deque>
#include <memory>

namespace worker {

/// Lets `width` holders in at a time, the others wait in their order. Ten machines that boot at
/// once on two cores are all slow; two by two they are done sooner, and none looks dead.
class Gate {
 public:
  Gate(boost::asio::any_io_executor executor, std::size_t width);

  class [[nodiscard]] Pass {
   public:
    Pass(Pass&&) noexcept = default;
    Pass& operator=(Pass&&) noexcept = default;
    ~Pass();

   private:
    friend class Gate;
    struct Impl;

    explicit Pass(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

    std::shared_ptr<Impl> impl_;
  };

  /// Throws when cancelled; the place in the queue is given up then.
  boost::asio::awaitable<Pass> enter();
  std::size_t waiting() const noexcept;

 private:
  std::shared_ptr<Pass::Impl> impl_;
};

}  // namespace worker
