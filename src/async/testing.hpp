#pragma once

#include "async/task.hpp"

namespace async {

/// For tests: runs `op` on a fresh loop to its end; rethrows what it throws. Ends the loop after
/// `limit`.
void run_test(std::function<asio::awaitable<void>()> op,
              std::chrono::seconds limit = std::chrono::seconds(30));

}  // namespace async
