#include "http/inbound.hpp"

#include <cstring>

namespace http {
namespace {

constexpr std::size_t idle_bytes = 4 * 1024;
constexpr std::size_t chunk_buffer_bytes = 16 * 1024;

}  // namespace

void Inbound::consume(std::size_t count) noexcept {
  begin_ += count;
  if (begin_ < end_) return;
  begin_ = 0;
  end_ = 0;
}

async::Task<bool> Inbound::fill(std::size_t bytes_max) {
  if (begin_ > 0 && end_ == buffer_.size()) {
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  if (end_ == buffer_.size()) {
    if (buffer_.size() >= bytes_max)
      co_return base::fail(base::Code::too_large, "too much at once");
    buffer_.resize(std::clamp(buffer_.size() * 2, std::min(idle_bytes, bytes_max), bytes_max));
  } else if (end_ == 0 && buffer_.size() > idle_bytes) {
    buffer_.resize(idle_bytes);
    buffer_.shrink_to_fit();
  }
  auto const count = co_await stream_->read_some(std::span<char>(buffer_).subspan(end_));
  if (!count) co_return std::unexpected(count.error());
  end_ += *count;
  arrived_ += *count;
  co_return *count > 0;
}

std::string Inbound::take_pending() {
  std::string out(pending());
  consume(out.size());
  return out;
}

async::Task<std::size_t> Inbound::await_head(std::size_t head_bytes_max) {
  HeadScanner scanner;
  for (;;) {
    if (!pending().empty()) {
      auto const found = scanner.scan(pending().substr(0, head_bytes_max));
      if (!found || *found > 0) co_return found;
      if (pending().size() >= head_bytes_max)
        co_return base::fail(base::Code::too_large, "the head is too large");
    }
    auto const more = co_await fill(head_bytes_max);
    if (!more) co_return std::unexpected(more.error());
    if (*more) continue;
    if (pending().empty()) co_return base::fail(base::Code::not_found, "the connection was closed");
    co_return base::fail(base::Code::unavailable,
                         "the connection was closed in the middle of a head");
  }
}

async::Task<std::size_t> Body::read_some(Inbound* inbound, std::span<char> into) {
  if (finished_ || into.empty()) co_return std::size_t{0};
  if (failed_) co_return base::fail(base::Code::unavailable, "the body is broken");
  auto count =
      kind_ == Framing::Kind::chunked ? read_chunked(inbound, into) : read_plain(inbound, into);
  auto result = co_await std::move(count);
  if (!result) failed_ = true;
  co_return result;
}

async::Task<std::size_t> Body::read_plain(Inbound* inbound, std::span<char> into) {
  if (kind_ == Framing::Kind::length) {
    into = into.first(static_cast<std::size_t>(std::min<std::uint64_t>(into.size(), left_)));
  }
  std::size_t count = 0;
  if (auto const ready = inbound->pending(); !ready.empty()) {
    count = std::min(ready.size(), into.size());
    std::copy_n(ready.data(), count, into.data());
    inbound->consume(count);
  } else {
    auto const read = co_await inbound->read_through(into);
    if (!read) co_return read;
    count = *read;
  }
  if (kind_ == Framing::Kind::until_close) {
    finished_ = count == 0;
    co_return count;
  }
  if (count == 0)
    co_return base::fail(base::Code::unavailable,
                         "the connection was closed in the middle of a body");
  left_ -= count;
  finished_ = left_ == 0;
  co_return count;
}

async::Task<std::size_t> Body::read_chunked(Inbound* inbound, std::span<char> into) {
  for (;;) {
    auto const ready = inbound->pending();
    if (!ready.empty()) {
      auto const step = chunks_.decode(std::span<char const>(ready.data(), ready.size()), into);
      if (!step) co_return std::unexpected(step.error());
      inbound->consume(step->consumed);
      finished_ = step->finished;
      if (step->produced > 0 || step->finished) co_return step->produced;
      if (step->consumed < ready.size()) continue;
    }
    auto const more = co_await inbound->fill(chunk_buffer_bytes);
    if (!more) co_return std::unexpected(more.error());
    if (!*more)
      co_return base::fail(base::Code::unavailable,
                           "the connection was closed in the middle of a body");
  }
}

}  // namespace http
