#include "worker/agent_client.hpp"

#include "base/log.hpp"
#include "http/client.hpp"
#include "worker/agent_replies.hpp"

namespace worker {
namespace {

async::Task<http::Response> call(http::Connection* connection,
                                 http::RequestHead head,
                                 std::string body) {
  auto exchange = co_await connection->start(std::move(head), std::move(body));
  if (!exchange)
    co_return base::fail(base::Code::unavailable,
                         "the guest's agent cut the connection",
                         exchange.error().message());
  http::Response response{(*exchange)->head.status, (*exchange)->head.headers, {}};
  auto text = co_await (*exchange)->body().read_all(reply_bytes_max);
  if (!text && text.error().code() == base::Code::too_large) {
    co_return base::fail(base::Code::internal, "the guest's agent answered at too great length");
  }
  if (!text)
    co_return base::fail(
        base::Code::unavailable, "the guest's agent cut its answer short", text.error().message());
  response.body = std::move(*text);
  co_return response;
}

async::Task<void> ask_health(http::Connection* connection) {
  auto const health = co_await call(connection, {"GET", "/health", {{"Host", "sandbox"}}}, {});
  if (!health) co_return std::unexpected(health.error());
  if (health->status != 204 && health->status != 200) {
    co_return base::fail(
        base::Code::internal,
        fmt::format("the guest's agent is not healthy: status {}", health->status));
  }
  co_return base::Result<void>();
}

async::Task<void> tell(http::Connection* connection, std::string body, std::string nonce) {
  http::RequestHead head{
      "POST", "/init", {{"Host", "sandbox"}, {"Content-Type", "application/json"}}};
  auto const reply = co_await call(connection, std::move(head), std::move(body));
  if (!reply) co_return std::unexpected(reply.error());
  co_return judge_init_reply(reply->status, reply->headers, reply->body, nonce);
}

async::Task<void> init_again(net::Stream stream, std::string body, std::string nonce) {
  http::Connection connection(std::move(stream));
  co_return co_await tell(&connection, std::move(body), std::move(nonce));
}

async::Task<void> init_over(AgentLine line, std::string body, std::string nonce) {
  co_return co_await tell(line.get(), std::move(body), std::move(nonce));
}

async::Task<void> health_then_init(net::Stream stream,
                                   wire::AgentInit init,
                                   std::function<void()> on_answer) {
  http::Connection connection(std::move(stream));
  auto const healthy = co_await ask_health(&connection);
  if (!healthy) co_return std::unexpected(healthy.error());
  if (on_answer) on_answer();
  co_return co_await tell(&connection, wire::encode_text(init), init.nonce);
}

/// A message of the Connect protocol: a flag byte, the length, the JSON.
std::string connect_message(std::string_view text) {
  std::string out(1, '\0');
  for (unsigned const shift : {24U, 16U, 8U, 0U})
    out.push_back(static_cast<char>(text.size() >> shift & 0xffU));
  return out.append(text);
}

/// As the client's `commands.run` does it.
constexpr std::string_view exercise =
    R"({"process":{"cmd":"/bin/bash","args":["-l","-c",)"
    R"("echo ok; ls / >/dev/null; sh -c true; python3 -c 'import json, os, subprocess, sys'"]},)"
    R"("stdin":false})";

http::RequestHead start_head(std::string const& token) {
  http::RequestHead head{"POST",
                         "/process.Process/Start",
                         {{"Host", "sandbox"},
                          {"Content-Type", "application/connect+json"},
                          {"Connect-Protocol-Version", "1"}}};
  if (!token.empty()) head.headers.add("X-Access-Token", token);
  return head;
}

/// As the control plane asks for a command: what users run first, and the first of them once more.
std::vector<std::string> rehearsed() {
  constexpr std::string_view programs[] = {
      R"("/bin/echo","args":["x"])",
      R"("/bin/bash","args":["-l","-c","echo x"])",
      R"~("/usr/bin/python3","args":["-c","print('x')"])~",
      R"("/bin/echo","args":["x"])",
  };
  std::vector<std::string> out;
  for (auto const program : programs) {
    std::string text = R"({"process":{"cmd":)";
    text.append(program).append(R"(,"envs":{}},"tag":"rehearsal-)");
    text.append(std::to_string(out.size())).append(R"(","stdin":false})");
    out.push_back(connect_message(text));
  }
  return out;
}

async::Task<AgentLine> rehearse(net::Stream stream, wire::AgentInit init) {
  auto line = std::make_shared<http::Connection>(std::move(stream));
  auto const body = wire::encode_text(init);
  auto told = co_await tell(line.get(), body, init.nonce);
  if (!told) co_return std::unexpected(told.error());
  for (auto& what : rehearsed()) {
    auto const ran =
        co_await call(line.get(), start_head(init.accessToken.value_or("")), std::move(what));
    if (!ran) co_return AgentLine();  // it does not keep a line open over what it cannot run
  }
  told = co_await tell(line.get(), body, init.nonce);
  if (!told) co_return std::unexpected(told.error());
  co_return line;
}

async::Task<void> init_then_exercise(net::Stream stream,
                                     wire::AgentInit init,
                                     std::function<void()> on_answer) {
  http::Connection connection(std::move(stream));
  auto const healthy = co_await ask_health(&connection);
  if (!healthy) co_return std::unexpected(healthy.error());
  if (on_answer) on_answer();
  auto told = co_await tell(&connection, wire::encode_text(init), init.nonce);
  if (!told) co_return told;
  auto const ran = co_await call(&connection, start_head({}), connect_message(exercise));
  bool const well = ran && ran->body.find(R"("exited":true)") != std::string::npos;
  if (!well)
    base::log::info("exercise_incomplete",
                    {{"status", ran ? ran->status : 0},
                     {"what", ran ? printable_reply(ran->body) : ran.error().message()}});
  co_return base::Result<void>();
}

async::Task<std::string> get_metrics(net::Stream stream, std::string init_key) {
  http::Connection connection(std::move(stream));
  http::RequestHead head{
      "GET", "/metrics", {{"Host", "sandbox"}, {"X-Space-Init-Key", std::move(init_key)}}};
  auto const reply = co_await call(&connection, std::move(head), {});
  if (!reply) co_return std::unexpected(reply.error());
  co_return judge_metrics_reply(reply->status, reply->body);
}

}  // namespace

async::Task<void> initialise_agent(net::Stream connection,
                                   wire::AgentInit init,
                                   base::Deadline deadline,
                                   std::function<void()> on_answer) {
  return async::with_deadline(
      deadline, health_then_init(std::move(connection), std::move(init), std::move(on_answer)));
}

async::Task<void> claim_agent(net::Stream connection,
                              wire::AgentInit init,
                              base::Deadline deadline) {
  auto nonce = init.nonce;
  return async::with_deadline(
      deadline, init_again(std::move(connection), wire::encode_text(init), std::move(nonce)));
}

async::Task<void> claim_agent_over(AgentLine line, wire::AgentInit init, base::Deadline deadline) {
  auto nonce = init.nonce;
  return async::with_deadline(
      deadline, init_over(std::move(line), wire::encode_text(init), std::move(nonce)));
}

async::Task<AgentLine> rehearse_agent(net::Stream connection,
                                      wire::AgentInit init,
                                      base::Deadline deadline) {
  return async::with_deadline(deadline, rehearse(std::move(connection), std::move(init)));
}

async::Task<void> exercise_agent(net::Stream connection,
                                 wire::AgentInit init,
                                 base::Deadline deadline,
                                 std::function<void()> on_answer) {
  return async::with_deadline(
      deadline, init_then_exercise(std::move(connection), std::move(init), std::move(on_answer)));
}

async::Task<void> update_agent(net::Stream connection,
                               boost::json::object changes,
                               std::string nonce,
                               base::Deadline deadline) {
  return async::with_deadline(
      deadline, init_again(std::move(connection), wire::to_text(changes), std::move(nonce)));
}

async::Task<std::string> agent_metrics(net::Stream connection,
                                       std::string init_key,
                                       base::Deadline deadline) {
  return async::with_deadline(deadline, get_metrics(std::move(connection), std::move(init_key)));
}

}  // namespace worker
