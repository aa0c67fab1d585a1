#include "net/byte_stream.hpp"

namespace net {
namespace {

constexpr std::size_t lane_bytes_max = 64 * 1024;

/// One direction of a pipe. Both ends share it.
struct Lane {
  explicit Lane(asio::any_io_executor executor) : changed(std::move(executor)) {}

  std::string bytes;
  bool ended = false;   // the writer is done: end of stream after `bytes`
  bool broken = false;  // an end is gone: nothing more, in either role
  async::Signal changed;

  void spoil() {
    broken = true;
    changed.notify_all();
  }
};

class PipeEnd final : public ByteStream {
 public:
  PipeEnd(std::shared_ptr<Lane> in, std::shared_ptr<Lane> out)
      : in_(std::move(in)), out_(std::move(out)) {}

  ~PipeEnd() override { PipeEnd::close(); }

  async::Task<std::size_t> read_some(std::span<char> into) override {
    auto const lane = in_;
    while (lane->bytes.empty() && !lane->ended && !lane->broken && !closed_)
      co_await lane->changed.wait();
    if (closed_) co_return base::fail(base::Code::cancelled, "read: cancelled");
    if (!lane->bytes.empty()) {
      auto const count = std::min(into.size(), lane->bytes.size());
      std::copy_n(lane->bytes.data(), count, into.data());
      lane->bytes.erase(0, count);
      lane->changed.notify_all();
      co_return count;
    }
    co_return std::size_t{0};
  }

  async::Task<void> write_all(std::span<char const> bytes) override {
    auto const lane = out_;
    while (!bytes.empty()) {
      while (lane->bytes.size() >= lane_bytes_max && !lane->broken && !closed_)
        co_await lane->changed.wait();
      if (closed_) co_return base::fail(base::Code::cancelled, "write: cancelled");
      if (lane->broken || lane->ended)
        co_return base::fail(base::Code::unavailable, "write: Broken pipe");
      auto const count = std::min(bytes.size(), lane_bytes_max - lane->bytes.size());
      lane->bytes.append(bytes.data(), count);
      bytes = bytes.subspan(count);
      lane->changed.notify_all();
    }
    co_return base::Result<void>();
  }

  async::Task<void> shutdown_write() override {
    out_->ended = true;
    out_->changed.notify_all();
    co_return base::Result<void>();
  }

  void close() noexcept override {
    closed_ = true;
    in_->spoil();
    out_->spoil();
  }

  std::string peer_name() const override { return "pipe"; }

  int native_handle() const noexcept override { return -1; }

 private:
  std::shared_ptr<Lane> in_;
  std::shared_ptr<Lane> out_;
  bool closed_ = false;
};

}  // namespace

std::pair<Stream, Stream> make_pipe(asio::any_io_executor executor) {
  auto there = std::make_shared<Lane>(executor);
  auto back = std::make_shared<Lane>(executor);
  return {std::make_unique<PipeEnd>(back, there), std::make_unique<PipeEnd>(there, back)};
}

}  // namespace net
