#include "agent/watch_stream.hpp"

#include "wire/codec.hpp"

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>

namespace agent {
namespace {

/// How many events wait here for a slow reader of a stream; the others wait in the kernel.
constexpr std::size_t stream_kept_max = 1024;

class WatchSource final : public MessageSource {
 public:
  WatchSource(asio::any_io_executor executor,
              std::unique_ptr<Watch> watch,
              os::Fd readable,
              std::string const& etc_dir,
              std::shared_ptr<std::size_t> streams)
      : watch_(std::move(watch)),
        ready_(executor, std::move(readable)),
        names_(etc_dir),
        streams_(std::move(streams)) {
    ++*streams_;
  }

  ~WatchSource() override { --*streams_; }

  std::optional<std::string> take() override {
    if (!std::exchange(started_, true)) return R"({"start":{}})";
    auto const event = watch_->take();
    if (!event) return std::nullopt;
    return wire::to_text(json::object{{"filesystem", json_of(*event, names_)}});
  }

  std::optional<RpcResult<void>> ended() override {
    auto loss = watch_->take_loss();
    if (!loss) return std::nullopt;
    return RpcResult<void>(rpc_fail(RpcCode::resource_exhausted, *std::move(loss)));
  }

  asio::awaitable<void> wait() override {
    if (!watch_->empty()) co_return;
    co_await ready_.wait_readable();
    auto draining = [watch = watch_.get()] { return watch->drain(stream_kept_max); };
    co_await async::blocking(std::move(draining));
  }

  std::string keepalive() const override { return R"({"keepalive":{}})"; }

 private:
  std::unique_ptr<Watch> watch_;
  PipeEnd ready_;
  OwnerNames names_;
  std::shared_ptr<std::size_t> streams_;
  bool started_ = false;
};

RpcResult<json::value> drained_events(Watch& watch, std::string const& etc_dir) {
  watch.drain(PolledWatch::answered_max);
  OwnerNames const names(etc_dir);
  json::array events;
  while (auto const event = watch.take())
    events.push_back(json_of(*event, names));
  // What was kept beside a loss is worth little and would hide it.
  if (auto loss = watch.take_loss()) return rpc_fail(RpcCode::resource_exhausted, *std::move(loss));
  return json::value(json::object{{"events", std::move(events)}});
}

}  // namespace

std::unique_ptr<MessageSource> make_watch_source(asio::any_io_executor executor,
                                                 std::unique_ptr<Watch> watch,
                                                 os::Fd readable,
                                                 std::string const& etc_dir,
                                                 std::shared_ptr<std::size_t> streams) {
  return std::make_unique<WatchSource>(
      executor, std::move(watch), std::move(readable), etc_dir, std::move(streams));
}

PolledWatch::PolledWatch(asio::any_io_executor executor,
                         std::unique_ptr<Watch> opened,
                         os::Fd readable,
                         std::string etc)
    : watch(std::move(opened)),
      ready(executor, std::move(readable)),
      etc_dir(std::move(etc)),
      turns(executor),
      taken(executor) {}

asio::awaitable<void> PolledWatch::follow_once() {
  co_await ready.wait_readable();
  if (removed) co_return;
  auto drained = Watch::Drained::all;
  {
    auto const turn = co_await turns.enter();
    auto draining = [this] { return watch->drain(kept_max); };
    drained = co_await async::blocking(std::move(draining));
  }
  if (drained == Watch::Drained::until_full && !removed) co_await taken.wait();
}

asio::awaitable<RpcResult<json::value>> PolledWatch::events() {
  auto const turn = co_await turns.enter();
  auto draining = [this] { return drained_events(*watch, etc_dir); };
  auto answer = co_await async::blocking(std::move(draining));
  taken.notify_all();
  co_return answer;
}

void PolledWatch::remove() noexcept {
  removed = true;
  ready.close();
  taken.notify_all();
}

}  // namespace agent
