#include "gateway/gateway.hpp"
#include "gateway/scrubber.hpp"
#include "gateway/websocket.hpp"

namespace gateway {
namespace {

constexpr std::size_t chunk_bytes = 16 * 1024;

/// The lengths stay, so the frames do. What may be a beginning is held back within a frame only: a
/// frame that ends is not kept waiting for the next one.
std::string scrubbed(Scrubber& scrubber, std::span<char const> bytes, WebSocketGuard const& guard) {
  auto text = scrubber.pass({bytes.data(), bytes.size()});
  if (guard.between_frames()) text += scrubber.finish();
  return text;
}

wire::GatewayDecision ended(Gateway const& gateway, LiveFlow const& flow) {
  auto out = record_of(flow, "connection");
  out.decision = "denied";
  out.reason = gateway.refusal("byte_budget");
  return out;
}

/// One direction; ends the other side's reading half when this one ends. `guard` is null for raw
/// bytes.
asio::awaitable<void> pump(Gateway* gateway,
                           LiveFlow* flow,
                           net::ByteStream* from,
                           net::ByteStream* to,
                           bool up,
                           WebSocketGuard* guard,
                           Scrubber* scrubber,
                           std::function<void()> scrubbed_some,
                           std::string ahead) {
  std::vector<char> buffer(ahead.begin(), ahead.end());
  std::size_t have = buffer.size();
  buffer.resize(std::max(have, chunk_bytes));
  while (true) {
    if (have == 0) {
      auto const got = co_await from->read_some(buffer);
      if (!got) break;
      have = *got;
      if (have == 0) {
        auto const ended = co_await to->shutdown_write();
        if (!ended) break;
        co_return;
      }
    }
    auto const bytes = std::span(buffer).first(std::exchange(have, 0));
    if (!gateway->admit_bytes(*flow, up ? bytes.size() : 0, up ? 0 : bytes.size())) {
      gateway->report(ended(*gateway, *flow));
      break;
    }
    if (guard && !guard->check({bytes.data(), bytes.size()})) break;
    auto const clean = scrubber ? scrubbed(*scrubber, bytes, *guard) : std::string();
    if (scrubber) scrubbed_some();
    auto const sent = co_await to->write_all(scrubber ? std::span<char const>(clean) : bytes);
    if (!sent) break;
  }
  from->close();
  to->close();
}

class PrefixedStream final : public net::ByteStream {
 public:
  PrefixedStream(std::string prefix, net::Stream below)
      : prefix_(std::move(prefix)), below_(std::move(below)) {}

  async::Task<std::size_t> read_some(std::span<char> into) override {
    if (used_ < prefix_.size()) {
      auto const count = std::min(into.size(), prefix_.size() - used_);
      std::copy_n(prefix_.data() + used_, count, into.data());
      used_ += count;
      co_return count;
    }
    co_return co_await below_->read_some(into);
  }

  async::Task<void> write_all(std::span<char const> bytes) override {
    return below_->write_all(bytes);
  }

  async::Task<void> shutdown_write() override { return below_->shutdown_write(); }

  void close() noexcept override { below_->close(); }

  std::string peer_name() const override { return below_->peer_name(); }

  int native_handle() const noexcept override { return below_->native_handle(); }

 private:
  std::string prefix_;
  std::size_t used_ = 0;
  net::Stream below_;
};

}  // namespace

net::Stream with_prefix(std::string prefix, net::Stream stream) {
  return std::make_unique<PrefixedStream>(std::move(prefix), std::move(stream));
}

asio::awaitable<void> relay_raw(Gateway& gateway,
                                LiveFlow& flow,
                                RawPermit,
                                net::ByteStream& guest,
                                std::string from_guest,
                                net::ByteStream& upstream) {
  async::TaskGroup both(gateway.executor());
  both.spawn(
      "up",
      pump(&gateway, &flow, &guest, &upstream, true, nullptr, nullptr, {}, std::move(from_guest)));
  both.spawn("down", pump(&gateway, &flow, &upstream, &guest, false, nullptr, nullptr, {}, {}));
  co_await both.join();
  auto last = record_of(flow, "flow");
  last.decision = "ended";
  last.reason = flow.over ? "cut by a change of the policy" : "closed";
  last.address = flow.upstream;
  last.up_bytes = flow.up_bytes;
  last.down_bytes = flow.down_bytes;
  last.duration_us = micros_since(flow.began);
  gateway.report(std::move(last));
}

asio::awaitable<void> relay_websocket(Gateway& gateway,
                                      LiveFlow& flow,
                                      net::ByteStream& guest,
                                      std::string from_guest,
                                      net::ByteStream& upstream,
                                      std::string from_upstream,
                                      Scrubber* scrubber,
                                      std::function<void()> scrubbed_some) {
  WebSocketGuard up(WebSocketGuard::From::guest);
  WebSocketGuard down(WebSocketGuard::From::server);
  async::TaskGroup both(gateway.executor());
  both.spawn(
      "up",
      pump(&gateway, &flow, &guest, &upstream, true, &up, nullptr, {}, std::move(from_guest)));
  both.spawn("down",
             pump(&gateway,
                  &flow,
                  &upstream,
                  &guest,
                  false,
                  &down,
                  scrubber,
                  std::move(scrubbed_some),
                  std::move(from_upstream)));
  co_await both.join();
}

}  // namespace gateway
