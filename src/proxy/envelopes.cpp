#include "proxy/envelopes.hpp"

#include "wire/codec.hpp"

namespace proxy {
namespace {

constexpr unsigned char end_flag = 2;

}  // namespace

void Envelopes::pass(std::string_view bytes) noexcept {
  while (!bytes.empty()) {
    if (left_ > 0) {
      auto const count = static_cast<std::size_t>(std::min<std::uint64_t>(left_, bytes.size()));
      bytes.remove_prefix(count);
      left_ -= count;
      continue;
    }
    header_[header_bytes_++] = static_cast<unsigned char>(bytes.front());
    bytes.remove_prefix(1);
    if (header_bytes_ < header_.size()) continue;
    header_bytes_ = 0;
    for (std::size_t i = 1; i < header_.size(); ++i)
      left_ = left_ * 256 + header_[i];
    if ((header_[0] & end_flag) != 0) ended_ = true;
  }
}

std::string last_envelope(std::string_view code, std::string_view message) {
  auto const payload = wire::to_text(
      wire::json::object{{"error", wire::json::object{{"code", code}, {"message", message}}}});
  std::string out;
  out += static_cast<char>(end_flag);
  for (int shift = 24; shift >= 0; shift -= 8)
    out += static_cast<char>((payload.size() >> shift) & 0xff);
  return out + payload;
}

}  // namespace proxy
