#pragma once

#include "base/result.hpp"

#include <cstdint>
#include <string_view>

namespace gateway {

/// Watches one direction of a WebSocket and lets nothing else through under that name: after the
/// handshake a connection could as well carry a shell. Sans I/O; frames may arrive in any pieces.
class WebSocketGuard {
 public:
  enum class From : std::uint8_t { guest, server };

  explicit WebSocketGuard(From from) : masked_(from == From::guest) {}

  /// An error at the first byte that no WebSocket peer would send (RFC 6455): unknown operations,
  /// reserved bits, a mask on the wrong side, control frames that are long or torn, a continuation
  /// of nothing.
  base::Result<void> check(std::string_view bytes);

  /// True after the last byte of a frame, and before the first one.
  bool between_frames() const noexcept { return head_at_ == 0 && !in_payload_; }

 private:
  base::Result<void> on_head_byte(std::uint8_t byte);
  base::Result<void> on_first(std::uint8_t byte);
  base::Result<void> on_length(std::uint8_t byte);
  base::Result<void> on_head_end();

  bool masked_;
  bool in_message_ = false;  // a message whose last fragment is to come
  bool over_ = false;        // a close frame ends this direction
  std::uint8_t head_at_ = 0;
  std::uint8_t operation_ = 0;
  bool final_ = false;
  std::uint8_t length_bytes_ = 0;  // of the extended length that are to come
  std::uint8_t mask_bytes_ = 0;    // of the mask that are to come
  std::uint64_t length_ = 0;       // of the payload, then what is left of it
  bool in_payload_ = false;
};

}  // namespace gateway
