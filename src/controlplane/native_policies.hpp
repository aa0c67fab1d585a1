#pragma once

#include "controlplane/native.hpp"
#include "controlplane/network_service.hpp"

/// The native routes of egress policies: of one sandbox (what is in force, why, what was decided)
/// and of each level (text, versions).
namespace controlplane {

class PolicyRoutes {
 public:
  PolicyRoutes(SandboxService& service,
               NetworkService& network,
               store::Store& store,
               WorkerClient& workers)
      : service_(service), network_(network), store_(store), workers_(workers) {}

  /// The PolicyRoutes must outlive the router.
  void add_routes(Router& router);

 private:
  /// A level and whose, after the caller's right to it was checked.
  struct Level {
    std::string name;
    std::string subject;
    std::string shown;  // subject in answers: "-" for the platform
  };

  // native_policies.cpp
  async::Task<Reply> get_sandbox(Call& call);
  async::Task<Reply> set_sandbox(Call& call);
  async::Task<Reply> remove_sandbox(Call& call);
  async::Task<Reply> get_level(Call& call);
  async::Task<Reply> set_level(Call& call);
  async::Task<Reply> remove_level(Call& call);
  async::Task<Reply> list_versions(Call& call);
  async::Task<Level> level_of(Call& call, bool to_change);
  async::Task<Reply> change(Call& call, Level level, std::optional<wire::Policy> policy);
  async::Task<Reply> change_sandbox(Call& call, std::optional<wire::Policy> policy);
  async::Task<void> check_credentials(Call& call, Level const& level, wire::Policy const& policy);

  // native_decisions.cpp
  async::Task<Reply> explain(Call& call);
  async::Task<Reply> suggest(Call& call);
  async::Task<Reply> stream_decisions(Call& call);
  async::Task<Reply> list_audit(Call& call);
  async::Task<void> relay_decisions(Call& call, std::unique_ptr<http::Exchange> exchange);

  async::Task<store::SandboxRow> live(Call& call);

  SandboxService& service_;
  NetworkService& network_;
  store::Store& store_;
  WorkerClient& workers_;
};

/// Rules that would have allowed what was denied, narrowest first: for an owner to read and paste.
/// Names are taken as text and never looked up; what is no host name is left out. Pure.
std::vector<wire::PolicyRule> suggested_rules(std::vector<wire::GatewayDecision> const& denied);

/// "https://host[:port]/path": what a policy judges. invalid_argument.
struct AskedUrl {
  std::string host;
  std::uint16_t port = 443;
  std::string path = "/";
  bool tls = true;
  bool websocket = false;
};

base::Result<AskedUrl> parse_url(std::string_view text);

}  // namespace controlplane
