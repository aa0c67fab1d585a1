#pragma once

#include "store/credentials.hpp"
#include "store/database.hpp"
#include "store/events.hpp"
#include "store/idempotency.hpp"
#include "store/keys.hpp"
#include "store/metrics.hpp"
#include "store/nodes.hpp"
#include "store/operations.hpp"
#include "store/policies.hpp"
#include "store/sandboxes.hpp"
#include "store/snapshots.hpp"
#include "store/templates.hpp"
#include "wire/config.hpp"

namespace store {

/// Everything of one database. Programs make one and hand references around.
struct Store {
  Store(asio::any_io_executor executor, DatabaseOptions options)
      : database(std::move(executor), std::move(options)) {}

  Database database;
  Sandboxes sandboxes{database};
  Snapshots snapshots{database};
  Operations operations{database};
  Events events{database};
  Keys keys{database};
  Projects projects{database};
  Nodes nodes{database};
  Templates templates{database};
  Idempotency idempotency{database};
  Metrics metrics{database};
  Policies policies{database};
  Credentials credentials{database};
};

/// `role` (space_api, space_controller, space_owner) on the embedded cluster's socket, or
/// config.database_url as it is.
DatabaseOptions database_options(wire::Config const& config, std::string const& role);

}  // namespace store
