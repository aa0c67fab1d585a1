#include "http/server.hpp"

namespace http {
namespace {

/// A line break in a field would begin another field.
std::string one_line(std::string_view text) {
  std::string out(text);
  std::erase_if(out, [](char c) { return c == '\n' || c == '\r' || c == '\0'; });
  return out;
}

}  // namespace

async::Task<void> sse_begin(ResponseWriter& response) {
  ResponseHead head;
  head.headers.add("Content-Type", "text/event-stream");
  head.headers.add("Cache-Control", "no-cache");
  head.headers.add("X-Accel-Buffering", "no");  // proxies in front must not collect events
  co_return co_await response.begin(std::move(head));
}

async::Task<void> sse_event(ResponseWriter& response,
                            std::string id,
                            std::string type,
                            std::string data) {
  std::string out;
  if (!id.empty()) out += "id: " + one_line(id) + "\n";
  if (!type.empty()) out += "event: " + one_line(type) + "\n";
  std::string_view rest = data;
  for (;;) {
    auto const line = rest.substr(0, rest.find('\n'));
    out += "data: " + one_line(line) + "\n";
    if (line.size() == rest.size()) break;
    rest.remove_prefix(line.size() + 1);
  }
  out += "\n";
  co_return co_await response.write(out);
}

async::Task<void> sse_comment(ResponseWriter& response, std::string text) {
  auto const line = ": " + one_line(text) + "\n\n";
  co_return co_await response.write(line);
}

}  // namespace http
