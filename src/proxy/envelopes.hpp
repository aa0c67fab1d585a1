#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace proxy {

/// Watches a Connect stream go by (envelopes: flags, four bytes of length, payload) to know whether
/// it stands between two envelopes. Then a stream whose sandbox ended can be given a proper last
/// envelope, which clients show as an error of the sandbox instead of a broken connection.
class Envelopes {
 public:
  void pass(std::string_view bytes) noexcept;

  /// Between two envelopes, and the stream has not said its own last word.
  bool can_end() const noexcept { return header_bytes_ == 0 && left_ == 0 && !ended_; }

 private:
  std::array<unsigned char, 5> header_{};
  std::size_t header_bytes_ = 0;
  std::uint64_t left_ = 0;
  bool ended_ = false;
};

/// The end-of-stream envelope with that error.
std::string last_envelope(std::string_view code, std::string_view message);

}  // namespace proxy
