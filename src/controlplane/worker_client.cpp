#include "controlplane/worker_client.hpp"

namespace controlplane {
namespace {

constexpr std::size_t answer_bytes_max = 4 << 20;
constexpr std::size_t connections_max = 64;

struct WorkerError {
  std::string code;
  std::string message;
};
BOOST_DESCRIBE_STRUCT(WorkerError, (), (code, message))

/// The worker's own error, in our words when it has none.
base::Error error_of(http::Response const& response) {
  auto said = wire::decode_text<WorkerError>(response.body, wire::UnknownKeys::ignore);
  if (said && !said->message.empty()) {
    // A state that cannot be used: nothing that trying again would change.
    auto const code =
        said->code == "failed_precondition" ? base::Code::conflict : base::code_named(said->code);
    return {code, std::move(said->message)};
  }
  return {base::code_of_http_status(response.status),
          fmt::format("the worker answered {}", response.status)};
}

template <class T> base::Result<T> decoded(base::Result<http::Response> response) {
  if (!response) return base::passing(response);
  // A newer worker may say more than we know.
  auto value = wire::decode_text<T>(response->body, wire::UnknownKeys::ignore, answer_bytes_max);
  if (!value)
    return base::fail(
        base::Code::internal, "the worker's answer cannot be read", value.error().message());
  return value;
}

}  // namespace

http::Client& WorkerClient::at(std::string const& address) {
  auto& client = clients_[address];
  if (!client) {
    auto const socket = address + "/worker.sock";
    auto connect = [socket]() { return net::connect_unix(socket); };
    client = std::make_unique<http::Client>(executor_, connect, connections_max);
  }
  return *client;
}

async::Task<http::Response> WorkerClient::call(std::string address,
                                               std::string method,
                                               std::string target,
                                               std::string body,
                                               base::Deadline deadline) {
  http::RequestHead head;
  head.method = std::move(method);
  head.target = std::move(target);
  head.headers.add("Host", "worker");
  if (!body.empty()) head.headers.add("Content-Type", "application/json");
  auto response =
      co_await at(address).request(std::move(head), std::move(body), deadline, answer_bytes_max);
  if (!response) co_return base::passing(response, "the worker");
  if (response->status >= 300) co_return std::unexpected(error_of(*response));
  co_return response;
}

async::Task<wire::NodeReport> WorkerClient::report(std::string address, base::Deadline deadline) {
  auto response = co_await call(std::move(address), "GET", "/node", {}, deadline);
  co_return decoded<wire::NodeReport>(std::move(response));
}

async::Task<wire::WorkerSandbox> WorkerClient::start(std::string address,
                                                     wire::StartSandbox start,
                                                     base::Deadline deadline) {
  auto response =
      co_await call(std::move(address), "POST", "/sandboxes", wire::encode_text(start), deadline);
  co_return decoded<wire::WorkerSandbox>(std::move(response));
}

async::Task<wire::EndedSandbox> WorkerClient::remove(std::string address,
                                                     std::string sandbox,
                                                     std::uint64_t epoch,
                                                     base::Deadline deadline) {
  auto target = fmt::format("/sandboxes/{}?epoch={}", sandbox, epoch);
  auto response = co_await call(std::move(address), "DELETE", std::move(target), {}, deadline);
  co_return decoded<wire::EndedSandbox>(std::move(response));
}

async::Task<void> WorkerClient::set_token(std::string address,
                                          std::string sandbox,
                                          wire::SetToken token,
                                          base::Deadline deadline) {
  auto target = fmt::format("/sandboxes/{}/token", sandbox);
  auto response = co_await call(
      std::move(address), "PUT", std::move(target), wire::encode_text(token), deadline);
  if (!response) co_return base::passing(response);
  co_return base::Result<void>();
}

async::Task<wire::GatewayApplied> WorkerClient::set_policy(std::string address,
                                                           std::string sandbox,
                                                           wire::SetPolicy policy,
                                                           base::Deadline deadline) {
  auto target = fmt::format("/sandboxes/{}/policy", sandbox);
  auto response = co_await call(
      std::move(address), "PUT", std::move(target), wire::encode_text(policy), deadline);
  co_return decoded<wire::GatewayApplied>(std::move(response));
}

async::Task<void> WorkerClient::reflection_taken(std::string address,
                                                 wire::Reflected reflected,
                                                 base::Deadline deadline) {
  auto response = co_await call(
      std::move(address), "POST", "/reflected/taken", wire::encode_text(reflected), deadline);
  if (!response) co_return base::passing(response);
  co_return base::Result<void>();
}

async::Task<std::unique_ptr<http::Exchange>> WorkerClient::decisions(std::string address,
                                                                     std::string sandbox,
                                                                     bool follow,
                                                                     base::Deadline head_deadline) {
  http::RequestHead head;
  head.method = "GET";
  head.target = fmt::format("/sandboxes/{}/decisions{}", sandbox, follow ? "" : "?follow=0");
  head.headers.add("Host", "worker");
  auto exchange = co_await at(address).stream(std::move(head), {}, head_deadline);
  if (!exchange) co_return base::passing(exchange, "the worker");
  if ((*exchange)->head.status >= 300)
    co_return base::fail(base::code_of_http_status((*exchange)->head.status),
                         "the worker has no decisions of this sandbox");
  co_return std::move(*exchange);
}

async::Task<wire::WorkerSandbox> WorkerClient::move(std::string address,
                                                    std::string sandbox,
                                                    std::string verb,
                                                    std::uint64_t epoch,
                                                    base::Deadline deadline) {
  auto target = fmt::format("/sandboxes/{}/{}", sandbox, verb);
  wire::Epoch const body{epoch};
  auto response = co_await call(
      std::move(address), "POST", std::move(target), wire::encode_text(body), deadline);
  co_return decoded<wire::WorkerSandbox>(std::move(response));
}

async::Task<wire::WorkerSandbox> WorkerClient::restore(std::string address,
                                                       wire::StartSandbox start,
                                                       base::Deadline deadline) {
  auto target = fmt::format("/sandboxes/{}/restore", start.sandbox);
  auto response = co_await call(
      std::move(address), "POST", std::move(target), wire::encode_text(start), deadline);
  co_return decoded<wire::WorkerSandbox>(std::move(response));
}

async::Task<wire::SnapshotReport> WorkerClient::take_snapshot(std::string address,
                                                              std::string sandbox,
                                                              wire::TakeSnapshot take,
                                                              base::Deadline deadline) {
  auto target = fmt::format("/sandboxes/{}/snapshot", sandbox);
  auto response = co_await call(
      std::move(address), "POST", std::move(target), wire::encode_text(take), deadline);
  co_return decoded<wire::SnapshotReport>(std::move(response));
}

async::Task<void> WorkerClient::remove_snapshot(std::string address,
                                                std::string snapshot,
                                                base::Deadline deadline) {
  auto target = fmt::format("/snapshots/{}", snapshot);
  auto response = co_await call(std::move(address), "DELETE", std::move(target), {}, deadline);
  if (!response) co_return base::passing(response);
  co_return base::Result<void>();
}

async::Task<json::value> WorkerClient::audit(std::string address,
                                             std::string sandbox,
                                             std::uint64_t after,
                                             std::uint32_t limit,
                                             base::Deadline deadline) {
  auto target = fmt::format("/audit?sandbox={}&after={}&limit={}", sandbox, after, limit);
  auto response = co_await call(std::move(address), "GET", std::move(target), {}, deadline);
  if (!response) co_return base::passing(response);
  co_return wire::parse_json(response->body, answer_bytes_max);
}

async::Task<void> WorkerClient::drain(std::string address, bool on, base::Deadline deadline) {
  wire::SetDrain const body{on};
  auto response =
      co_await call(std::move(address), "POST", "/drain", wire::encode_text(body), deadline);
  if (!response) co_return base::passing(response);
  co_return base::Result<void>();
}

async::Task<json::value> WorkerClient::metrics(std::string address,
                                               std::string sandbox,
                                               base::Deadline deadline) {
  auto target = fmt::format("/sandboxes/{}/metrics", sandbox);
  auto response = co_await call(std::move(address), "GET", std::move(target), {}, deadline);
  if (!response) co_return base::passing(response);
  co_return wire::parse_json(response->body, answer_bytes_max);
}

async::Task<std::vector<base::MetricSample>> WorkerClient::samples(std::string address,
                                                                   base::Deadline deadline) {
  auto response = co_await call(std::move(address), "GET", "/metrics", {}, deadline);
  co_return decoded<std::vector<base::MetricSample>>(std::move(response));
}

async::Task<std::string> WorkerClient::console(std::string address,
                                               std::string sandbox,
                                               base::Deadline deadline) {
  auto target = fmt::format("/sandboxes/{}/console", sandbox);
  auto response = co_await call(std::move(address), "GET", std::move(target), {}, deadline);
  if (!response) co_return base::passing(response);
  co_return std::move(response->body);
}

}  // namespace controlplane
