#pragma once

#include "http/parser.hpp"
#include "net/byte_stream.hpp"

namespace http {

/// The reading half of a connection: what has arrived and was not used yet. Small while idle, since
/// there may be thousands; bytes of a next message stay here.
class Inbound {
 public:
  explicit Inbound(net::ByteStream* stream) : stream_(stream) {}

  std::string_view pending() const noexcept { return {buffer_.data() + begin_, end_ - begin_}; }

  void consume(std::size_t count) noexcept;
  /// Reads once, at least a byte; false at the end of the stream. The buffer grows up to
  /// `bytes_max`; `too_large` when it is full already.
  async::Task<bool> fill(std::size_t bytes_max);

  /// Straight into the caller's memory, for when nothing is pending.
  async::Task<std::size_t> read_through(std::span<char> into) { return stream_->read_some(into); }

  std::string take_pending();

  /// Bytes that ever arrived through fill().
  std::uint64_t arrived() const noexcept { return arrived_; }

  /// The length of the head that is now pending. Errors: invalid_argument (malformed), too_large,
  /// not_found when the stream ended before its first byte, unavailable when it ended in the
  /// middle.
  async::Task<std::size_t> await_head(std::size_t head_bytes_max);

 private:
  net::ByteStream* stream_;
  std::vector<char> buffer_;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
  std::uint64_t arrived_ = 0;
};

/// The body of the message whose head was taken from `inbound`.
class Body {
 public:
  Body() = default;

  explicit Body(Framing framing)
      : kind_(framing.kind),
        left_(framing.length),
        finished_(framing.kind == Framing::Kind::none) {}

  /// As BodyReader::read_some. A stream that ends too early is `unavailable`, a broken chunk
  /// invalid_argument.
  async::Task<std::size_t> read_some(Inbound* inbound, std::span<char> into);

  bool finished() const noexcept { return finished_; }

  bool failed() const noexcept { return failed_; }

 private:
  async::Task<std::size_t> read_plain(Inbound* inbound, std::span<char> into);
  async::Task<std::size_t> read_chunked(Inbound* inbound, std::span<char> into);

  Framing::Kind kind_ = Framing::Kind::none;
  std::uint64_t left_ = 0;
  ChunkDecoder chunks_;
  bool finished_ = true;
  bool failed_ = false;
};

}  // namespace http
