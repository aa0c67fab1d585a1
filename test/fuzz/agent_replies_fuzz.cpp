#include "wire/codec.hpp"
#include "worker/agent_replies.hpp"

#include <cstdint>
#include <cstdlib>

/// What a replaced agent answers. Nothing but our nonce is a success, what passes on is JSON of
/// known fields, and no error carries a control character to a terminal.
extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  if (size < 2 || size > worker::reply_bytes_max) return 0;
  int const status = data[0] % 4 == 0 ? 204 : data[0] % 4 == 1 ? 200 : 400 + data[1];
  // SAFETY: bytes are bytes; char may alias them.
  std::string const body(reinterpret_cast<char const*>(data) + 2, size - 2);
  std::string const nonce = "0123456789abcdef0123456789abcdef";

  auto const init = worker::judge_init_reply(status, {{"X-Space-Nonce", body}}, body, nonce);
  if (init && (status != 204 || body != nonce)) std::abort();
  if (!init) {
    for (char const c : init.error().message()) {
      if (static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t') std::abort();
    }
  }
  auto const metrics = worker::judge_metrics_reply(status, body);
  if (metrics && !wire::parse_json(*metrics)) std::abort();
  return 0;
}
