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
  if (said && !said->message.empty())
    return {base::code_named(said->code), std::move(said->message)};
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

async::Task<json::value> WorkerClient::metrics(std::string address,
                                               std::string sandbox,
                                               base::Deadline deadline) {
  auto target = fmt::format("/sandboxes/{}/metrics", sandbox);
  auto response = co_await call(std::move(address), "GET", std::move(target), {}, deadline);
  if (!response) co_return base::passing(response);
  co_return wire::parse_json(response->body, answer_bytes_max);
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
