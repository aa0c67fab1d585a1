#pragma once

#include "agent/users.hpp"
#include "async/task.hpp"

/// File operations with the rights of one of the guest's users. The kernel keeps credentials per
/// thread; what glibc offers (setgroups, capset wrappers) changes all threads, so this uses the raw
/// calls.
namespace agent {

/// While it lives, the calling thread opens, makes and removes files as `user`: its file-system ids
/// and groups, and none of root's capabilities unless the user is root. Does nothing when the
/// process is not root (tests).
///
/// Invariant: ends on the thread that made it, and the thread has its old rights again afterwards;
/// if the kernel refused that, the process aborts, for a thread of the pool with the wrong rights
/// is worse.
class ActingAs {
 public:
  explicit ActingAs(User const& user);
  ~ActingAs();
  ActingAs(ActingAs const&) = delete;
  ActingAs& operator=(ActingAs const&) = delete;

 private:
  bool changed_ = false;
  bool dropped_ = false;
  std::vector<gid_t> groups_;
  unsigned effective_[2] = {};
};

/// Runs `call` on the blocking pool with the rights of `user`. `call` owns all it needs.
template <class F>
auto blocking_as(User user, F call) -> boost::asio::awaitable<std::invoke_result_t<F>> {
  auto work = [user = std::move(user), call = std::move(call)]() mutable {
    ActingAs const rights(user);
    return call();
  };
  co_return co_await async::blocking(std::move(work));
}

}  // namespace agent
