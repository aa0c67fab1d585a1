#include "controller/testing.hpp"

#include "base/assert.hpp"
#include "wire/gateway.hpp"

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
  } else if (path == "/metrics") {
    sent = co_await response.send(json_response(200, samples));
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
  } else if (path == "/audit") {
    sent = co_await response.send(json_response(
        200, R"({"records":[{"seq":3,"host":"a.example"}],"next_after":3,"more":false})"));
  } else if (path == "/audit/checkpoints") {
    std::uint64_t after = 0;
    auto const query = request.head.query();
    if (query.starts_with("after="))
      std::from_chars(query.data() + 6, query.data() + query.size(), after);
    auto const told = checkpoints ? checkpoints(after) : wire::AuditCheckpoints{};
    sent = co_await response.send(json_response(200, wire::encode_text(told)));
  } else if (path == "/drain") {
    auto const body = co_await request.body.read_all(4096);
    auto const drain = wire::decode_text<wire::SetDrain>(body.value_or(""));
    if (drain) report.draining = draining = drain->on;
    sent = co_await response.send(json_response(200, wire::encode_text(report)));
  } else if (path == "/reflected/taken") {
    auto const body = co_await request.body.read_all(4096);
    auto const told = wire::decode_text<wire::Reflected>(body.value_or(""));
    if (told) taken.push_back(*told);
    sent = co_await response.send({told ? 204 : 400, {}, {}});
  } else if (path == "/snapshots") {
    wire::json::array list;
    for (auto const& [id, snapshot] : snapshots)
      list.push_back(wire::encode(snapshot));
    sent = co_await response.send(
        json_response(200, wire::to_text(wire::json::object{{"snapshots", std::move(list)}})));
  } else if (path.starts_with("/snapshots/")) {
    snapshots.erase(path.substr(11));
    sent = co_await response.send({204, {}, {}});
  } else if (path.starts_with("/sandboxes/")) {
    co_await answer_sandbox(path.substr(11), request, response);
  }
  static_cast<void>(sent);  // a controller that left is no failure of the worker
}

http::asio::awaitable<void> FakeWorker::answer_sandbox(std::string id,
                                                       http::Request& request,
                                                       http::ResponseWriter& response) {
  base::Result<void> sent;
  if (request.head.method == "POST") {
    co_await answer_move(std::move(id), request, response);
    co_return;
  }
  if (id.ends_with("/token") && request.head.method == "PUT") {
    auto const body = co_await request.body.read_all(4096);
    auto const token = wire::decode_text<wire::SetToken>(body.value_or(""));
    if (token) tokens[id.substr(0, id.size() - 6)] = token->access_token;
    sent = co_await response.send({token ? 204 : 400, {}, {}});
    co_return;
  }
  if (id.ends_with("/policy") && request.head.method == "PUT") {
    co_await answer_policy(id.substr(0, id.size() - 7), request, response);
    co_return;
  }
  if (id.ends_with("/decisions")) {
    sent = co_await response.send(
        {200, http::Headers{{"Content-Type", "application/x-ndjson"}}, decisions});
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
  static_cast<void>(sent);  // a controller that left is no failure of the worker
}

http::asio::awaitable<void> FakeWorker::answer_policy(std::string sandbox,
                                                      http::Request& request,
                                                      http::ResponseWriter& response) {
  auto const body = co_await request.body.read_all(8 << 20);
  auto wanted =
      wire::decode_text<wire::SetPolicy>(body.value_or(""), wire::UnknownKeys::reject, 8 << 20);
  base::Result<void> sent;
  if (!wanted) {
    sent = co_await response.send(
        error_response(base::Code::invalid_argument, wanted.error().message()));
    co_return;
  }
  policies.emplace_back(std::move(sandbox), *wanted);
  if (policy_refusal) {
    sent =
        co_await response.send(error_response(policy_refusal->code(), policy_refusal->message()));
    co_return;
  }
  wire::GatewayApplied applied{wanted->policy.generation, 3, 1, {}};
  sent = co_await response.send(json_response(200, wire::encode_text(applied)));
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
  machine.started_by = start->from_snapshot.empty() ? "cold boot" : "snapshot";
  sent = co_await response.send(json_response(200, wire::encode_text(machine)));
}

http::asio::awaitable<void> FakeWorker::answer_move(std::string path,
                                                    http::Request& request,
                                                    http::ResponseWriter& response) {
  auto const slash = path.find('/');
  auto const id = path.substr(0, slash);
  auto const verb = slash == std::string::npos ? std::string() : path.substr(slash + 1);
  auto const body = co_await request.body.read_all(1 << 20);
  if (move_delay.count() > 0) co_await async::sleep_for(move_delay);
  auto answer = move_refusal        ? error_response(move_refusal->code(), move_refusal->message())
                : verb == "restore" ? restored(id, body.value_or(""))
                                    : moved(id, verb, body.value_or(""));
  auto sent = co_await response.send(std::move(answer));
  static_cast<void>(sent);  // who asked may be gone
}

http::Response FakeWorker::moved(std::string const& sandbox,
                                 std::string const& verb,
                                 std::string const& body) {
  auto const found = machines.find(sandbox);
  if (found == machines.end()) return error_response(base::Code::not_found, "no such sandbox");
  auto& machine = found->second;
  std::uint64_t epoch = 0;
  std::string snapshot;
  if (verb == "snapshot") {
    auto const take = wire::decode_text<wire::TakeSnapshot>(body);
    if (!take) return error_response(base::Code::invalid_argument, take.error().message());
    epoch = take->epoch;
    snapshot = take->snapshot;
  } else {
    auto const asked = wire::decode_text<wire::Epoch>(body);
    if (!asked) return error_response(base::Code::invalid_argument, asked.error().message());
    epoch = asked->epoch;
  }
  moves.push_back(fmt::format("{} {} {}", verb, sandbox, epoch));
  if (epoch < machine.epoch) return error_response(base::Code::conflict, "an older epoch");
  auto const from_to = std::map<std::string, std::pair<std::string_view, std::string>>{
      {"pause", {"running paused", "paused"}},
      {"resume", {"running paused", "running"}},
      {"suspend", {"running paused suspended", "suspended"}},
      {"snapshot", {"running", "running"}}};
  auto const rule = from_to.find(verb);
  if (rule == from_to.end()) return error_response(base::Code::not_found, "there is no such call");
  if (rule->second.first.find(machine.state) == std::string_view::npos) {
    return error_response(base::Code::conflict, "the sandbox is " + machine.state);
  }
  machine.state = rule->second.second;
  if (verb == "suspend") machine.suspended_bytes = 1 << 20;
  if (verb != "snapshot") return json_response(200, wire::encode_text(machine));
  wire::SnapshotReport made;
  made.snapshot = snapshot;
  made.build = machine.build;
  made.bytes = 1 << 20;
  made.paused_ms = 3;
  snapshots[snapshot] = made;
  return json_response(200, wire::encode_text(made));
}

http::Response FakeWorker::restored(std::string const& sandbox, std::string const& body) {
  auto start = wire::decode_text<wire::StartSandbox>(body);
  if (!start || start->sandbox != sandbox)
    return error_response(base::Code::invalid_argument, "no such start");
  moves.push_back(fmt::format("restore {} {}", sandbox, start->epoch));
  restores.push_back(*start);
  auto const found = machines.find(sandbox);
  if (found == machines.end()) return error_response(base::Code::not_found, "no such sandbox");
  auto& machine = found->second;
  if (machine.state == "running" && machine.epoch == start->epoch)
    return json_response(200, wire::encode_text(machine));
  if (machine.state != "suspended" || start->epoch <= machine.epoch)
    return error_response(base::Code::conflict, "it is not suspended here");
  machine.state = "running";
  machine.epoch = start->epoch;
  machine.started_by = "suspended state";
  machine.suspended_bytes = 0;
  return json_response(200, wire::encode_text(machine));
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
