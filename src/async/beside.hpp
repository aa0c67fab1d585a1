#pragma once

#include <future>
#include <utility>

namespace async {

/// For what blocks already (a call in run_blocking): runs `call` beside it on a thread of its own,
/// or, where the host has no thread left, at get(). The future waits for it before it dies.
template <class F> auto beside(F call) {
  return std::async(std::launch::async | std::launch::deferred, std::move(call));
}

}  // namespace async
