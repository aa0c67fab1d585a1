#pragma once

#include "controlplane/e2b_routes.hpp"
#include "controlplane/front.hpp"
#include "controlplane/internal.hpp"
#include "controlplane/metrics.hpp"
#include "controlplane/native.hpp"
#include "controlplane/native_credentials.hpp"
#include "controlplane/native_policies.hpp"
#include "controlplane/quarantine.hpp"
#include "wire/config.hpp"

/// The whole of space-api: everything built in the order of dependency, two sockets, four loops.
namespace controlplane {

class Api {
 public:
  /// `database` is store::database_options() in production, a test's own database in tests.
  Api(asio::any_io_executor executor,
      wire::Config const& config,
      store::DatabaseOptions database,
      Tokens tokens);
  ~Api();

  /// Serves until cancelled, then ends in order: new requests, running ones (2 s), background work.
  async::Task<void> run();

  Router const& router() const noexcept { return router_; }

  SandboxService& service() noexcept { return service_; }

  store::Store& store() noexcept { return store_; }

  Nodes& nodes() noexcept { return nodes_; }

  Quarantine& quarantine() noexcept { return quarantine_; }

 private:
  base::Result<void> listen();
  asio::awaitable<void> close();

  asio::any_io_executor executor_;
  wire::Config config_;
  Tokens tokens_;
  store::Store store_;
  WorkerClient workers_;
  GuestClient guests_;
  Nodes nodes_;
  EventHub hub_;
  Audit audit_;
  NetworkService network_;
  SandboxService service_;
  Native native_;
  MetricsRoutes metrics_;
  PolicyRoutes policies_;
  CredentialRoutes credentials_;
  Quarantine quarantine_;
  e2b::E2b e2b_;
  Router router_;
  Front front_;
  Peers public_peers_;
  struct Door;  // the peer check in front of the public routes
  std::unique_ptr<Door> door_;
  Internal internal_;
  http::Server public_server_;
  http::Server internal_server_;
  async::TaskGroup loops_;  // last: its children use the members above
};

/// Every route of the API, for tests that walk the table. The handlers must not be called.
void add_all_routes(Router& router,
                    Native& native,
                    MetricsRoutes& metrics,
                    PolicyRoutes& policies,
                    CredentialRoutes& credentials,
                    e2b::E2b& e2b);

}  // namespace controlplane
