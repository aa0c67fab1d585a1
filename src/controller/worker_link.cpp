#include "controller/worker_link.hpp"

namespace controller {
namespace {

constexpr std::size_t ended_line_bytes_max =
    std::size_t{256} * 1024;                     // a console's tail is 64 KiB before escaping
constexpr std::chrono::seconds silence_max{15};  // the worker writes an empty line every 5 s

struct WorkerError {
  std::string code;
  std::string message;
};
BOOST_DESCRIBE_STRUCT(WorkerError, (), (code, message))

struct SandboxList {
  std::vector<wire::WorkerSandbox> sandboxes;
};
BOOST_DESCRIBE_STRUCT(SandboxList, (), (sandboxes))

struct SnapshotList {
  std::vector<wire::SnapshotReport> snapshots;
};
BOOST_DESCRIBE_STRUCT(SnapshotList, (), (snapshots))

http::Client::Connect connector(std::string directory) {
  return [path = std::move(directory) + "/worker.sock"] { return net::connect_unix(path); };
}

/// The failure behind an answer that is none we asked for.
std::unexpected<base::Error> refusal(int status, std::string const& body) {
  auto const error = wire::decode_text<WorkerError>(body, wire::UnknownKeys::ignore);
  if (!error || error->code.empty()) {
    return base::fail(base::code_of_http_status(status),
                      fmt::format("the worker answered {}", status));
  }
  return base::fail(base::code_named(error->code), error->message);
}

template <class T> base::Result<T> decoded(http::Response const& response) {
  if (response.status != 200) return refusal(response.status, response.body);
  // A newer worker may say more than we know.
  auto value =
      wire::decode_text<T>(response.body, wire::UnknownKeys::ignore, std::size_t{16} << 20);
  if (!value)
    return base::fail(
        base::Code::unavailable, "the worker's answer makes no sense", value.error().message());
  return value;
}

}  // namespace

WorkerLink::WorkerLink(http::asio::any_io_executor executor, std::string directory)
    : client_(std::move(executor), connector(std::move(directory))) {}

async::Task<http::Response> WorkerLink::call(std::string method,
                                             std::string target,
                                             base::Deadline deadline,
                                             std::string body) {
  http::RequestHead head;
  head.method = std::move(method);
  head.target = std::move(target);
  head.headers.add("Host", "worker");
  if (!body.empty()) head.headers.add("Content-Type", "application/json");
  co_return co_await client_.request(std::move(head), std::move(body), deadline);
}

async::Task<wire::NodeReport> WorkerLink::report(base::Deadline deadline) {
  auto response = co_await call("GET", "/node", deadline);
  if (!response) co_return base::passing(response, "ask the worker for its report");
  co_return decoded<wire::NodeReport>(*response);
}

async::Task<wire::AuditCheckpoints> WorkerLink::audit_checkpoints(std::uint64_t after,
                                                                  base::Deadline deadline) {
  auto response = co_await call("GET", fmt::format("/audit/checkpoints?after={}", after), deadline);
  if (!response) co_return base::passing(response, "ask the worker for its checkpoints");
  co_return decoded<wire::AuditCheckpoints>(*response);
}

async::Task<std::vector<wire::WorkerSandbox>> WorkerLink::list(base::Deadline deadline) {
  auto response = co_await call("GET", "/sandboxes", deadline);
  if (!response) co_return base::passing(response, "ask the worker for its sandboxes");
  auto list = decoded<SandboxList>(*response);
  if (!list) co_return base::passing(list);
  co_return std::move(list->sandboxes);
}

async::Task<std::optional<wire::WorkerSandbox>> WorkerLink::find(std::string sandbox,
                                                                 base::Deadline deadline) {
  auto response = co_await call("GET", "/sandboxes/" + sandbox, deadline);
  if (!response) co_return base::passing(response, "ask the worker for the sandbox");
  if (response->status == 404) co_return std::optional<wire::WorkerSandbox>();
  auto found = decoded<wire::WorkerSandbox>(*response);
  if (!found) co_return base::passing(found);
  co_return std::optional(std::move(*found));
}

async::Task<wire::EndedSandbox> WorkerLink::remove(std::string sandbox,
                                                   std::uint64_t epoch,
                                                   base::Deadline deadline) {
  auto response =
      co_await call("DELETE", fmt::format("/sandboxes/{}?epoch={}", sandbox, epoch), deadline);
  if (!response) co_return base::passing(response, "ask the worker to end the sandbox");
  co_return decoded<wire::EndedSandbox>(*response);
}

async::Task<wire::WorkerSandbox> WorkerLink::move(std::string sandbox,
                                                  std::string verb,
                                                  std::uint64_t epoch,
                                                  base::Deadline deadline) {
  auto target = fmt::format("/sandboxes/{}/{}", sandbox, verb);
  wire::Epoch const body{epoch};
  auto response = co_await call("POST", std::move(target), deadline, wire::encode_text(body));
  if (!response) co_return base::passing(response, "ask the worker to " + verb);
  co_return decoded<wire::WorkerSandbox>(*response);
}

async::Task<std::vector<wire::SnapshotReport>> WorkerLink::snapshots(base::Deadline deadline) {
  auto response = co_await call("GET", "/snapshots", deadline);
  if (!response) co_return base::passing(response, "ask the worker for its snapshots");
  auto list = decoded<SnapshotList>(*response);
  if (!list) co_return base::passing(list);
  co_return std::move(list->snapshots);
}

async::Task<void> WorkerLink::remove_snapshot(std::string snapshot, base::Deadline deadline) {
  auto response = co_await call("DELETE", "/snapshots/" + snapshot, deadline);
  if (!response) co_return base::passing(response, "ask the worker to remove a snapshot");
  if (response->status >= 300) co_return refusal(response->status, response->body);
  co_return base::Result<void>();
}

async::Task<void> WorkerLink::drain(bool on, base::Deadline deadline) {
  wire::SetDrain const body{on};
  auto response = co_await call("POST", "/drain", deadline, wire::encode_text(body));
  if (!response) co_return base::passing(response, "tell the worker to drain");
  if (response->status >= 300) co_return refusal(response->status, response->body);
  co_return base::Result<void>();
}

async::Task<wire::json::value> WorkerLink::metrics(std::string sandbox, base::Deadline deadline) {
  auto response = co_await call("GET", "/sandboxes/" + sandbox + "/metrics", deadline);
  if (!response) co_return base::passing(response, "ask the worker for metrics");
  if (response->status != 200) co_return refusal(response->status, response->body);
  co_return wire::parse_json(response->body, std::size_t{64} * 1024);
}

async::Task<void> WorkerLink::follow_ended(std::function<void()> on_open, OnEnded on_ended) {
  http::RequestHead head;
  head.method = "GET";
  head.target = "/ended";
  head.headers.add("Host", "worker");
  auto exchange = co_await client_.stream(
      std::move(head), {}, base::system_clock().in(std::chrono::seconds(5)));
  if (!exchange) co_return base::passing(exchange, "follow the worker's ends");
  if ((*exchange)->head.status != 200) co_return refusal((*exchange)->head.status, {});
  on_open();
  std::string pending;
  std::array<char, 8192> buffer;
  while (true) {
    auto reading = (*exchange)->body().read_some(buffer);
    auto const count =
        co_await async::with_deadline(base::system_clock().in(silence_max), std::move(reading));
    if (!count)
      co_return base::fail(
          base::Code::unavailable, "the worker's stream of ends broke", count.error().message());
    if (*count == 0)
      co_return base::fail(base::Code::unavailable, "the worker closed its stream of ends");
    pending.append(buffer.data(), *count);
    std::size_t start = 0;
    for (auto end = pending.find('\n'); end != std::string::npos; end = pending.find('\n', start)) {
      auto const line = std::string_view(pending).substr(start, end - start);
      start = end + 1;
      if (line.empty()) continue;
      auto ended = wire::decode_text<wire::EndedSandbox>(line, wire::UnknownKeys::ignore);
      if (!ended)
        co_return base::fail(base::Code::unavailable,
                             "the worker's stream of ends makes no sense",
                             ended.error().message());
      co_await on_ended(std::move(*ended));
    }
    pending.erase(0, start);
    if (pending.size() > ended_line_bytes_max)
      co_return base::fail(base::Code::unavailable,
                           "a line of the worker's stream of ends is too long");
  }
}

WorkerLink& WorkerLinks::at(std::string const& address) {
  auto& link = links_[address];
  if (!link) link = std::make_unique<WorkerLink>(executor_, address);
  return *link;
}

}  // namespace controller
