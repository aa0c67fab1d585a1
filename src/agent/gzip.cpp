#include "agent/gzip.hpp"

#include "base/assert.hpp"

#include <array>

#include <zlib.h>

namespace agent {
namespace {

constexpr int gzip_window = 15 + 16;  // 32 KiB window, gzip frame
// In an emulated machine the default level costs five times as much for a few per cent.
constexpr int level = 1;

// SAFETY: zlib does not write through next_in; its type predates const.
Bytef* input_of(std::string_view bytes) {
  return const_cast<Bytef*>(reinterpret_cast<Bytef const*>(bytes.data()));  // NOLINT
}

Bytef* output_of(char* buffer) {
  return reinterpret_cast<Bytef*>(buffer);  // NOLINT
}

}  // namespace

struct GzipEncoder::Impl {
  z_stream stream{};
};

GzipEncoder::GzipEncoder() : impl_(std::make_unique<Impl>()) {
  auto const made =
      ::deflateInit2(&impl_->stream, level, Z_DEFLATED, gzip_window, 8, Z_DEFAULT_STRATEGY);
  if (made != Z_OK) throw std::bad_alloc();
}

GzipEncoder::~GzipEncoder() {
  ::deflateEnd(&impl_->stream);
}

void GzipEncoder::add(std::string_view bytes, Last last, std::string& out) {
  auto& stream = impl_->stream;
  stream.next_in = input_of(bytes);
  stream.avail_in = static_cast<uInt>(bytes.size());
  std::array<char, 16384> buffer{};
  for (;;) {
    stream.next_out = output_of(buffer.data());
    stream.avail_out = static_cast<uInt>(buffer.size());
    auto const status = ::deflate(&stream, last == Last::yes ? Z_FINISH : Z_NO_FLUSH);
    SPACE_ASSERT(status != Z_STREAM_ERROR, "the stream was initialised and has not ended");
    out.append(buffer.data(), buffer.size() - stream.avail_out);
    if (stream.avail_out != 0 || status == Z_STREAM_END) return;
  }
}

struct GzipDecoder::Impl {
  z_stream stream{};
  bool at_end = false;
};

GzipDecoder::GzipDecoder() : impl_(std::make_unique<Impl>()) {
  if (::inflateInit2(&impl_->stream, gzip_window) != Z_OK) throw std::bad_alloc();
}

GzipDecoder::~GzipDecoder() {
  ::inflateEnd(&impl_->stream);
}

bool GzipDecoder::complete() const noexcept {
  return impl_->at_end;
}

base::Result<void> GzipDecoder::take(std::string_view& bytes, std::size_t most, std::string& out) {
  auto& stream = impl_->stream;
  auto const limit = out.size() + most;
  std::array<char, 16384> buffer{};
  while (out.size() < limit) {
    if (impl_->at_end) {
      if (bytes.empty()) return {};
      ::inflateReset(&stream);
      impl_->at_end = false;
    }
    stream.next_in = input_of(bytes);
    stream.avail_in = static_cast<uInt>(bytes.size());
    stream.next_out = output_of(buffer.data());
    stream.avail_out = static_cast<uInt>(std::min(buffer.size(), limit - out.size()));
    auto const room = stream.avail_out;
    auto const status = ::inflate(&stream, Z_NO_FLUSH);
    auto const produced = room - stream.avail_out;
    out.append(buffer.data(), produced);
    bytes.remove_prefix(bytes.size() - stream.avail_in);
    if (status == Z_STREAM_END) {
      impl_->at_end = true;
    } else if (status == Z_MEM_ERROR) {
      throw std::bad_alloc();
    } else if (status != Z_OK && status != Z_BUF_ERROR) {
      return base::fail(base::Code::invalid_argument, "the body is not valid gzip");
    } else if (produced == 0 && bytes.empty()) {
      return {};
    }
  }
  return {};
}

}  // namespace agent
