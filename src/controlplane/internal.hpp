#pragma once

#include "controlplane/event_hub.hpp"
#include "controlplane/peers.hpp"
#include "controlplane/sandbox_service.hpp"
#include "http/server.hpp"
#include "wire/route.hpp"

/// What the proxy asks (src/wire/route.hpp), on a socket of its own.
namespace controlplane {

class Internal final : public http::Handler {
 public:
  Internal(SandboxService& service, store::Store& store, EventHub& hub, Peers peers);

  asio::awaitable<void> handle(http::Request& request, http::ResponseWriter& response) override;

 private:
  async::Task<wire::Route> route(std::string query);
  async::Task<http::Response> answer(http::Request& request);
  async::Task<wire::Route> wake(std::string query);
  async::Task<void> note_activity(std::string body);
  async::Task<json::value> suspend_all(std::string query);
  asio::awaitable<void> changes(http::ResponseWriter& response);
  asio::awaitable<void> follow(http::ResponseWriter& response, EventHub::Feed feed);

  SandboxService& service_;
  store::Store& store_;
  EventHub& hub_;
  Peers peers_;
};

/// Who asks when a visitor wakes a sandbox, or the host puts it to sleep.
Asker visitor_of(store::SandboxRow const& row);
/// Where it is and who may reach it.
wire::Route route_of(store::SandboxRow const& row, std::string const& traffic_token);
/// What an event means to open connections; nothing when they may stay.
std::optional<wire::RouteChange> change_of(store::EventRow const& event);

}  // namespace controlplane
