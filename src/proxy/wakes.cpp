#include "proxy/wakes.hpp"

#include "base/log.hpp"

#include <boost/asio/this_coro.hpp>

namespace proxy {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t connections_max = 128;
constexpr auto report_patience = 5'000ms;

struct Refused {
  std::string code;
  std::string message;
};
BOOST_DESCRIBE_STRUCT(Refused, (), (code, message))

http::RequestHead post(std::string target) {
  return {.method = "POST", .target = std::move(target), .headers = {{"Host", "internal"}}};
}

}  // namespace

struct Wakes::Flight {
  explicit Flight(asio::any_io_executor executor) : landed(std::move(executor)) {}

  std::optional<base::Result<void>> result;
  async::Signal landed;
};

Wakes::Wakes(asio::any_io_executor executor, std::string internal_socket, Limits limits)
    : executor_(executor),
      client_(
          executor,
          [path = std::move(internal_socket)] { return net::connect_unix(path); },
          connections_max),
      limits_(limits),
      work_(std::move(executor)) {}

/// May it be woken once more now?
base::Result<void> Wakes::admit(std::string const& sandbox) {
  auto const now = base::system_clock().steady_now();
  std::erase_if(lately_, [&](auto const& one) { return now - one.second.back() > 1min; });
  auto& times = lately_[sandbox];
  while (!times.empty() && now - times.front() > 1min)
    times.pop_front();
  bool const often = times.size() >= limits_.per_minute || flights_.size() >= limits_.at_once;
  if (often) {
    if (times.empty()) lately_.erase(sandbox);
    return base::fail(base::Code::exhausted, "The sandbox is woken too often; try again later");
  }
  times.push_back(now);
  return {};
}

async::Task<void> Wakes::wake(std::string sandbox) {
  auto const known = flights_.find(sandbox);
  std::shared_ptr<Flight> flight;
  if (known != flights_.end()) {
    flight = known->second;
  } else {
    if (auto admitted = admit(sandbox); !admitted) co_return base::passing(admitted);
    flight = std::make_shared<Flight>(executor_);
    flights_.emplace(sandbox, flight);
    // Not this visitor's own: others may wait for it when he has left.
    work_.spawn("wake", fly(sandbox, flight));
  }
  while (!flight->result)
    co_await flight->landed.wait();
  co_return *flight->result;
}

asio::awaitable<void> Wakes::fly(std::string sandbox, std::shared_ptr<Flight> flight) {
  struct Land {
    Wakes& wakes;
    std::string const& sandbox;
    Flight& flight;

    ~Land() {
      if (!flight.result)
        flight.result = base::fail(base::Code::unavailable, "The platform is being stopped");
      wakes.flights_.erase(sandbox);
      flight.landed.notify_all();
    }

    Land(Land const&) = delete;
    Land& operator=(Land const&) = delete;

    Land(Wakes& of, std::string const& which, Flight& what)
        : wakes(of), sandbox(which), flight(what) {}
  } const land(*this, sandbox, *flight);

  auto const answer =
      co_await client_.request(post("/wake?sandbox=" + http::percent_encode(sandbox)),
                               "",
                               base::system_clock().in(limits_.patience),
                               64 * 1024);
  if (!answer) {
    flight->result = base::fail(
        base::Code::unavailable, "The platform does not answer", answer.error().message());
  } else if (answer->status == 200) {
    flight->result = base::Result<void>();
  } else {
    auto const refused = wire::decode_text<Refused>(answer->body, wire::UnknownKeys::ignore);
    auto const code = base::code_of_http_status(answer->status);
    flight->result =
        base::fail(code, refused ? refused->message : std::string("The sandbox was not woken"));
  }
  base::log::info("woken",
                  {{"sandbox", sandbox},
                   {"ok", flight->result->has_value()},
                   {"why", *flight->result ? std::string() : flight->result->error().message()}});
}

asio::awaitable<void> Wakes::run(Visits& visits) {
  // Ends by cancellation; what is under way is awaited all the same.
  co_await asio::this_coro::throw_if_cancelled(false);
  try {
    auto state = co_await asio::this_coro::cancellation_state;
    while (state.cancelled() == asio::cancellation_type::none) {
      co_await async::sleep_for(limits_.activity_every);
      co_await report(visits);
      state = co_await asio::this_coro::cancellation_state;
    }
  } catch (boost::system::system_error const&) {  // cancelled
  }
  work_.cancel();
  co_await work_.join();
}

asio::awaitable<void> Wakes::report(Visits& visits) {
  wire::Activity activity{visits.take_used()};
  if (activity.sandboxes.empty()) co_return;
  auto const answer = co_await client_.request(post("/activity"),
                                               wire::encode_text(activity),
                                               base::system_clock().in(report_patience),
                                               64 * 1024);
  if (answer && answer->status == 204) co_return;
  // Said again next time: a sandbox must not be put to sleep because the API restarted.
  for (auto const& one : activity.sandboxes)
    visits.note_used(one);
}

}  // namespace proxy
