#pragma once

#include "http/client.hpp"
#include "proxy/visits.hpp"

#include <deque>

namespace proxy {

/// Wakes sandboxes for visitors who may: one request to the API per sandbox at a time, however many
/// visitors wait for it, and only so many a minute. Tells the API as well who was used.
class Wakes {
 public:
  struct Limits {
    std::size_t per_minute = 10;                 // of one sandbox
    std::size_t at_once = 64;                    // of all
    std::chrono::milliseconds patience{65'000};  // the API's own is below
    std::chrono::milliseconds activity_every{20'000};
  };

  Wakes(asio::any_io_executor executor, std::string internal_socket, Limits limits);

  /// Returns when it runs. Errors: conflict (it may not be woken), exhausted (too often), the API's
  /// own, deadline_exceeded.
  async::Task<void> wake(std::string sandbox);

  /// Tells the API now and then who has visitors, until cancelled; ends the wakes under way then.
  asio::awaitable<void> run(Visits& visits);

 private:
  struct Flight;
  base::Result<void> admit(std::string const& sandbox);
  asio::awaitable<void> fly(std::string sandbox, std::shared_ptr<Flight> flight);
  asio::awaitable<void> report(Visits& visits);

  asio::any_io_executor executor_;
  http::Client client_;
  Limits limits_;
  std::map<std::string, std::shared_ptr<Flight>> flights_;
  std::map<std::string, std::deque<base::SteadyTime>> lately_;  // when each was woken
  async::TaskGroup work_;  // last: its children use the members above
};

}  // namespace proxy
