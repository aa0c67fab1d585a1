#include "cli/command_stream.hpp"

#include "base/base64.hpp"
#include "base/id.hpp"
#include "wire/codec.hpp"

#include <array>

namespace cli {
namespace {

using namespace std::chrono_literals;

struct SignalName {
  std::string_view name;
  int number;
};

// As the guest's agent writes them.
constexpr std::array signal_names = {SignalName{"hangup", 1},
                                     SignalName{"interrupt", 2},
                                     SignalName{"quit", 3},
                                     SignalName{"illegal instruction", 4},
                                     SignalName{"trace/breakpoint trap", 5},
                                     SignalName{"aborted", 6},
                                     SignalName{"bus error", 7},
                                     SignalName{"floating point exception", 8},
                                     SignalName{"killed", 9},
                                     SignalName{"user defined signal 1", 10},
                                     SignalName{"segmentation fault", 11},
                                     SignalName{"user defined signal 2", 12},
                                     SignalName{"broken pipe", 13},
                                     SignalName{"alarm clock", 14},
                                     SignalName{"terminated", 15}};

int signal_in(std::string_view status) {
  constexpr std::string_view prefix = "signal: ";
  if (!status.starts_with(prefix)) return 0;
  status.remove_prefix(prefix.size());
  for (auto const& [name, number] : signal_names) {
    if (status.starts_with(name)) return number;
  }
  constexpr std::string_view numbered = "signal ";
  return status.starts_with(numbered)
             ? std::atoi(std::string(status.substr(numbered.size())).c_str())
             : 0;  // NOLINT(cert-err34-c)
}

}  // namespace

CommandEnd end_of(json::value const& data) {
  auto const status = text_of(data, "status");
  auto const error = text_of(data, "error");
  CommandEnd end{static_cast<int>(number_of(data, "exit_code")), {}};
  if (auto const signal = signal_in(status); signal > 0)
    end.exit_code = 128 + signal;
  else if (end.exit_code < 0)
    end.exit_code = 1;
  // The plain "exit status 3" and "signal: killed" are said by the code; anything else is worth a
  // line.
  if (error != status) end.complaint = error;
  return end;
}

std::string RemoteCommand::path(std::string_view below) const {
  return path_of(
      "sandboxes", sandbox_, fmt::format("/commands/{}{}", http::percent_encode(id_), below));
}

async::Task<void> RemoteCommand::start(json::object request) {
  auto started = co_await api_.call(
      "POST", path_of("sandboxes", sandbox_, "/commands"), std::move(request), in_a_minute());
  if (!started) co_return base::passing(started);
  id_ = text_of(*started, "id");
  co_return base::Result<void>();
}

base::Result<std::optional<CommandEnd>> RemoteCommand::take(std::string_view type,
                                                            json::value const& data) {
  if (type == "end") return std::optional(end_of(data));
  if (type == "gap") lost_(number_of(data, "bytes"));
  if (type == "stdout" || type == "stderr" || type == "pty") {
    auto const bytes = base::base64_decoded(text_of(data, "data"));
    if (!bytes) return base::fail(base::Code::internal, "the output is not encoded as expected");
    sink_(type, *bytes);
  }
  return std::optional<CommandEnd>();
}

async::Task<std::optional<CommandEnd>> RemoteCommand::follow_once() {
  http::Headers headers{{"Accept", "text/event-stream"}};
  if (!last_event_.empty()) headers.add("Last-Event-ID", last_event_);
  auto exchange = co_await api_.stream(
      "GET", path("/output"), {}, std::move(headers), base::system_clock().in(15s));
  if (!exchange) co_return base::passing(exchange);
  EventParser parser;
  std::vector<ServerEvent> events;
  std::string buffer(65536, '\0');
  for (;;) {
    auto got = co_await (*exchange)->body().read_some(buffer);
    if (!got || *got == 0) co_return std::optional<CommandEnd>();
    events.clear();
    if (!parser.feed(std::string_view(buffer).substr(0, *got), events))
      co_return base::fail(base::Code::internal, "the output stream is broken");
    for (auto const& event : events) {
      auto data = wire::parse_json(event.data, 8U << 20);
      if (!data) co_return base::fail(base::Code::internal, "the output stream is broken");
      auto ended = take(event.type, *data);
      if (!ended || *ended) co_return ended;
      last_event_ = event.id;
    }
  }
}

async::Task<CommandEnd> RemoteCommand::follow(Sink sink, std::function<void(std::int64_t)> lost) {
  sink_ = std::move(sink);
  lost_ = std::move(lost);
  auto give_up = base::system_clock().in(60s);
  auto pause = 50ms;
  for (;;) {
    auto const before = last_event_;
    auto ended = co_await follow_once();
    if (ended && *ended) co_return std::move(**ended);
    bool const hopeless = !ended && !base::may_retry(ended.error().code());
    if (hopeless || base::system_clock().steady_now() > give_up) {
      if (!ended) co_return base::passing(ended, "read the output");
      co_return base::fail(base::Code::unavailable,
                           "the output stream was cut and could not be taken up again");
    }
    if (last_event_ != before) {  // it was alive in between
      give_up = base::system_clock().in(60s);
      pause = 50ms;
    }
    co_await async::sleep_for(pause);
    pause = std::min<std::chrono::milliseconds>(pause * 2, 2s);
  }
}

async::Task<void> RemoteCommand::write_input(std::string bytes) {
  auto connection = co_await api_.connect();
  if (!connection) co_return base::passing(connection);
  auto head = api_.head("POST", path("/stdin"));
  head.headers.add("Content-Type", "application/octet-stream");
  head.headers.add("Idempotency-Key", base::random_hex(16));
  auto exchange = co_await connection->start(std::move(head), std::move(bytes));
  if (!exchange) co_return base::passing(exchange);
  if ((*exchange)->head.status / 100 == 2) co_return base::Result<void>();
  auto text = co_await (*exchange)->body().read_all(1U << 20);
  co_return std::unexpected(error_of((*exchange)->head.status, text ? *text : std::string()));
}

async::Task<void> RemoteCommand::close_input() {
  auto done = co_await api_.call("DELETE", path("/stdin"), nullptr, in_a_minute());
  if (!done) co_return base::passing(done);
  co_return base::Result<void>();
}

async::Task<void> RemoteCommand::send_signal(std::string name) {
  auto done = co_await api_.call(
      "POST", path("/signal"), json::object{{"signal", std::move(name)}}, in_a_minute());
  if (!done) co_return base::passing(done);
  co_return base::Result<void>();
}

async::Task<void> RemoteCommand::resize(std::uint16_t columns, std::uint16_t rows) {
  auto done = co_await api_.call(
      "POST", path("/resize"), json::object{{"cols", columns}, {"rows", rows}}, in_a_minute());
  if (!done) co_return base::passing(done);
  co_return base::Result<void>();
}

}  // namespace cli
