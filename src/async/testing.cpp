#include "async/testing.hpp"

#include <stdexcept>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>

namespace async {

void run_test(std::function<asio::awaitable<void>()> op, std::chrono::seconds limit) {
  asio::io_context loop(1);
  bool ended = false;
  std::exception_ptr failure;
  asio::co_spawn(loop, op(), [&](std::exception_ptr thrown) {
    ended = true;
    failure = thrown;
    loop.stop();
  });
  loop.run_for(limit);
  if (failure) std::rethrow_exception(failure);
  if (!ended) throw std::runtime_error("the test's coroutine did not end in time");
}

}  // namespace async
