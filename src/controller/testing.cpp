#include "controller/testing.hpp"

#include "base/assert.hpp"

#include <algorithm>
#include <charconv>

namespace controller::testing {
namespace {

http::Response json_response(int status, std::string body) {
  return {status, http::Headers{{"Content-Type", "application/json"}}, std::move(body)};
}

http::Response error_response(base::Code code, std::string_view message) {
  return json_response(
      base::http_status_of(code),
      wire::to_text(wire::json::object{{"code", base::name_of(code)}, {"message", message}}));
}

}  // namespace

FakeWorker::FakeWorker(http::asio::any_io_executor executor, std::string directory)
    : metrics(
          R"({"cpu_count":1,"cpu_used_pct":2.5,"mem_used":100,"mem_total":500,"mem_cache":10,"disk_used":7,"disk_total":9})"),
      executor_(executor),
      directory_(std::move(directory)),
      changed_(std::move(executor)) {
  report.name = "node-1";
  report.memory_mib_total = 1024;
}

FakeWorker::~FakeWorker() = default;

void FakeWorker::start() {
  auto listener = net::listen_unix(executor_, directory_ + "/worker.sock");
  SPACE_ASSERT(listener.has_value(), "a test has a directory of its own");
  server_ = std::make_unique<http::Server>(executor_, *this);
  server_->listen(std::move(*listener));
}

http::asio::awaitable<void> FakeWorker::stop() {
  if (!server_) co_return;
  co_await server_->close(std::chrono::milliseconds(0));
  server_.reset();
}

void FakeWorker::add(std::string sandbox, std::uint64_t epoch, std::string state) {
  wire::WorkerSandbox machine;
  machine.sandbox = sandbox;
  machine.epoch = epoch;
  machine.state = std::move(state);
  machine.timeline = {{"vmm_started", 12.5}};
  machines[std::move(sandbox)] = std::move(machine);
}

void FakeWorker::end(std::string sandbox, std::string cause) {
  wire::EndedSandbox ended;
  ended.sandbox = sandbox;
  ended.epoch = machines.contains(sandbox) ? machines[sandbox].epoch : 1;
  ended.cause = std::move(cause);
  ended.detail = "as the test wanted";
  ended.console_tail = "[    1.0] last words\n";
  ended.ended_at = base::to_rfc3339(base::system_clock().wall_now());
  machines.erase(sandbox);
  ended_.push_back(std::move(ended));
  changed_.notify_all();
}

std::size_t FakeWorker::deletes_of(std::string const& sandbox) const {
  return static_cast<std::size_t>(
      std::ranges::count(deletes, sandbox, &std::pair<std::string, std::uint64_t>::first));
}

http::asio::awaitable<void> FakeWorker::handle(http::Request& request,
                                               http::ResponseWriter& response) {
  auto const path = std::string(request.head.path());
  base::Result<void> sent;
  if (path == "/node") {
    sent = co_await response.send(json_response(200, wire::encode_text(report)));
  } else if (path == "/ended") {
    co_await stream_ends(response);
  } else if (path == "/sandboxes" && request.head.method == "POST") {
    co_await answer_start(request, response);
  } else if (path == "/sandboxes") {
    wire::json::array list;
    for (auto const& [id, machine] : machines)
      list.push_back(wire::encode(machine));
    sent = co_await response.send(
        json_response(200, wire::to_text(wire::json::object{{"sandboxes", std::move(list)}})));
  } else if (path.starts_with("/sandboxes/")) {
    auto id = path.substr(11);
    if (id.ends_with("/token") && request.head.method == "PUT") {
      auto const body = co_await request.body.read_all(4096);
      auto const token = wire::decode_text<wire::SetToken>(body.value_or(""));
      if (token) tokens[id.substr(0, id.size() - 6)] = token->access_token;
      sent = co_await response.send({token ? 204 : 400, {}, {}});
      co_return;
    }
    if (id.ends_with("/console")) {
      sent = co_await response.send(
          {200, http::Headers{{"Content-Type", "text/plain"}}, "[    0.0] booted\n"});
      co_return;
    }
    bool const wants_metrics = id.ends_with("/metrics");
    if (wants_metrics) id.resize(id.size() - 8);
    if (request.head.method == "DELETE") {
      std::uint64_t epoch = 0;
      auto const query = request.head.query();
      if (query.starts_with("epoch="))
        std::from_chars(query.data() + 6, query.data() + query.size(), epoch);
      co_await answer_delete(id, epoch, response);
    } else if (!machines.contains(id)) {
      sent = co_await response.send(error_response(base::Code::not_found, "no such sandbox"));
    } else {
      sent = co_await response.send(
          json_response(200, wants_metrics ? metrics : wire::encode_text(machines[id])));
    }
  }
  static_cast<void>(sent);  // a controller that left is no failure of the worker
}

http::asio::awaitable<void> FakeWorker::answer_start(http::Request& request,
                                                     http::ResponseWriter& response) {
  auto const body = co_await request.body.read_all(1 << 20);
  base::Result<void> sent;
  auto start = wire::decode_text<wire::StartSandbox>(body.value_or(""));
  if (!start) {
    sent = co_await response.send(
        error_response(base::Code::invalid_argument, start.error().message()));
    co_return;
  }
  starts.push_back(*start);
  if (start_delay.count() > 0) co_await async::sleep_for(start_delay);
  if (start_refusal) {
    sent = co_await response.send(error_response(start_refusal->code(), start_refusal->message()));
    co_return;
  }
  add(start->sandbox, start->epoch);
  auto& machine = machines[start->sandbox];
  machine.build = start->build;
  machine.started_by = "cold boot";
  sent = co_await response.send(json_response(200, wire::encode_text(machine)));
}

http::asio::awaitable<void> FakeWorker::answer_delete(std::string sandbox,
                                                      std::uint64_t epoch,
                                                      http::ResponseWriter& response) {
  deletes.emplace_back(sandbox, epoch);
  if (delete_delay.count() > 0) co_await async::sleep_for(delete_delay);
  auto const machine = machines.find(sandbox);
  base::Result<void> sent;
  if (machine != machines.end() && machine->second.epoch > epoch) {
    sent = co_await response.send(error_response(base::Code::conflict, "an older epoch"));
    co_return;
  }
  wire::EndedSandbox ended;
  ended.sandbox = sandbox;
  ended.epoch = epoch;
  ended.cause = "deleted";
  if (machine != machines.end()) {
    machines.erase(machine);
    ended_.push_back(ended);
    changed_.notify_all();
  }
  sent = co_await response.send(json_response(200, wire::encode_text(ended)));
}

http::asio::awaitable<void> FakeWorker::stream_ends(http::ResponseWriter& response) {
  http::ResponseHead head;
  head.headers.add("Content-Type", "application/x-ndjson");
  auto written = co_await response.begin(std::move(head));
  for (std::size_t told = 0; written;) {
    if (told == ended_.size()) {
      co_await changed_.wait();
      continue;
    }
    auto const line = wire::encode_text(ended_[told++]) + "\n";
    written = co_await response.write(line);
  }
}

}  // namespace controller::testing
