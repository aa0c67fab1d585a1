#pragma once

#include "http/server.hpp"
#include "worker/worker.hpp"

#include <set>

namespace worker {

/// Users whose programs may call a worker: root, ourselves, and the roles of the configuration that
/// exist here.
std::set<unsigned> allowed_users(wire::Config const& config);

/// worker.sock: src/wire/worker.hpp over HTTP, and `GET /metrics`: a list of base::MetricSample,
/// what this worker counted. Checks the user at the other end of every connection.
class Api final : public http::Handler {
 public:
  Api(Worker& worker, std::set<unsigned> allowed) : worker_(worker), allowed_(std::move(allowed)) {}

  boost::asio::awaitable<void> handle(http::Request& request,
                                      http::ResponseWriter& response) override;

 private:
  async::Task<http::Response> answer(http::Request* request);
  async::Task<http::Response> answer_sandbox(http::Request* request,
                                             std::string id,
                                             std::string what);
  async::Task<http::Response> change(http::Request* request, std::string id, std::string verb);
  async::Task<http::Response> restore(http::Request* request, std::string id);
  async::Task<http::Response> snapshot(http::Request* request, std::string id);
  async::Task<http::Response> drain(http::Request* request);
  async::Task<http::Response> answer_snapshots(http::Request* request, std::string name);
  async::Task<http::Response> start(http::Request* request);
  async::Task<http::Response> end(http::Request* request, std::string id);
  async::Task<http::Response> set_token(http::Request* request, std::string id);
  async::Task<http::Response> set_policy(http::Request* request, std::string id);
  async::Task<http::Response> list_audit(http::RequestHead head);
  async::Task<http::Response> list_checkpoints(http::RequestHead head);
  async::Task<void> stream_decisions(http::ResponseWriter* response, std::string id, bool follow);
  async::Task<void> stream_ended(http::ResponseWriter* response);

  Worker& worker_;
  std::set<unsigned> allowed_;
};

}  // namespace worker
