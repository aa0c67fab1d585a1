#pragma once

#include "agent/connect_rpc.hpp"
#include "agent/context.hpp"
#include "agent/machine.hpp"
#include "wire/agent.hpp"

namespace agent {

/// POST /init: the host tells the machine who it is. The first call sets the key, every later one
/// must carry it.
class InitHandler final : public http::Handler {
 public:
  InitHandler(Context& context, Machine& machine) : context_(context), machine_(machine) {}

  asio::awaitable<void> handle(http::Request& request, http::ResponseWriter& response) override;

 private:
  http::Response apply(std::string_view body);
  void take(wire::AgentInit init);

  Context& context_;
  Machine& machine_;
};

/// "2030-01-01T00:00:00.123456789Z" or with an offset "+01:00".
base::Result<base::WallTime> parse_rfc3339(std::string_view text);

}  // namespace agent
