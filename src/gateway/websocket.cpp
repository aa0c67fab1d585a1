#include "gateway/websocket.hpp"

namespace gateway {
namespace {

constexpr std::uint8_t continuation = 0;
constexpr std::uint8_t text = 1;
constexpr std::uint8_t binary = 2;
constexpr std::uint8_t close = 8;
constexpr std::uint8_t ping = 9;
constexpr std::uint8_t pong = 10;

std::unexpected<base::Error> bad(std::string_view what) {
  return base::fail(base::Code::invalid_argument, fmt::format("WebSocket: {}", what));
}

}  // namespace

base::Result<void> WebSocketGuard::check(std::string_view bytes) {
  while (!bytes.empty()) {
    if (in_payload_) {
      auto const take = std::min<std::uint64_t>(length_, bytes.size());
      bytes.remove_prefix(static_cast<std::size_t>(take));
      length_ -= take;
      in_payload_ = length_ > 0;
      continue;
    }
    if (over_) return bad("bytes after the closing frame");
    auto step = on_head_byte(static_cast<std::uint8_t>(bytes.front()));
    if (!step) return step;
    bytes.remove_prefix(1);
  }
  return {};
}

base::Result<void> WebSocketGuard::on_head_byte(std::uint8_t byte) {
  base::Result<void> step;
  if (head_at_ == 0) {
    step = on_first(byte);
  } else if (head_at_ == 1) {
    step = on_length(byte);
  } else if (length_bytes_ > 0) {
    length_ = length_ << 8 | byte;
    --length_bytes_;
  } else {
    --mask_bytes_;
  }
  if (!step) return step;
  bool const complete = head_at_ > 0 && length_bytes_ == 0 && mask_bytes_ == 0;
  if (head_at_ < 2) ++head_at_;
  return complete ? on_head_end() : base::Result<void>();
}

base::Result<void> WebSocketGuard::on_first(std::uint8_t byte) {
  final_ = (byte & 0x80U) != 0;
  operation_ = byte & 0x0fU;
  // The first reserved bit is compression's; the others are nobody's.
  if ((byte & 0x30U) != 0) return bad("a reserved bit is set");
  bool const control = operation_ >= close;
  bool const known = operation_ <= binary || (operation_ >= close && operation_ <= pong);
  if (!known) return bad("an unknown operation");
  if (control && (!final_ || (byte & 0x40U) != 0)) return bad("a control frame in pieces");
  if (operation_ == continuation && !in_message_) return bad("a continuation of nothing");
  if ((operation_ == text || operation_ == binary) && in_message_)
    return bad("a message inside another one");
  if (operation_ == ping || operation_ == pong || operation_ == close) return {};
  in_message_ = !final_;
  return {};
}

base::Result<void> WebSocketGuard::on_length(std::uint8_t byte) {
  bool const masked = (byte & 0x80U) != 0;
  if (masked != masked_) return bad("a mask on the wrong side");
  mask_bytes_ = masked ? 4 : 0;
  length_ = byte & 0x7fU;
  if (operation_ >= close && length_ > 125) return bad("a long control frame");
  length_bytes_ = length_ == 126 ? 2 : length_ == 127 ? 8 : 0;
  if (length_bytes_ > 0) length_ = 0;
  return {};
}

base::Result<void> WebSocketGuard::on_head_end() {
  if (length_ >> 63U) return bad("a length beyond every limit");
  head_at_ = 0;
  in_payload_ = length_ > 0;
  over_ = operation_ == close;
  return {};
}

}  // namespace gateway
