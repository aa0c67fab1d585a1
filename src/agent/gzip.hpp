#pragma once

#include "base/result.hpp"

#include <memory>
#include <string>
#include <string_view>

/// gzip in steps of bounded size, for bodies that are larger than memory. Not thread-safe; may move
/// between threads.
namespace agent {

class GzipEncoder {
 public:
  GzipEncoder();
  ~GzipEncoder();
  GzipEncoder(GzipEncoder const&) = delete;
  GzipEncoder& operator=(GzipEncoder const&) = delete;

  enum class Last : bool { no, yes };
  /// Appends what is ready of the compressed form. With Last::yes the stream is complete
  /// afterwards.
  void add(std::string_view bytes, Last last, std::string& out);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

class GzipDecoder {
 public:
  GzipDecoder();
  ~GzipDecoder();
  GzipDecoder(GzipDecoder const&) = delete;
  GzipDecoder& operator=(GzipDecoder const&) = delete;

  /// Takes from the front of `bytes` and appends at most `most` decoded bytes to `out` (a few bytes
  /// of input may stand for megabytes). Call again while `bytes` is not empty or `most` bytes came
  /// out. Several members in a row are one stream. `invalid_argument` for anything that is no gzip.
  base::Result<void> take(std::string_view& bytes, std::size_t most, std::string& out);
  /// True at the end of a member: where a stream may end. False before the first byte.
  bool complete() const noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace agent
