#include "store/store.hpp"

namespace store {

DatabaseOptions database_options(wire::Config const& config, std::string const& role) {
  DatabaseOptions options;
  options.program = role;
  if (!config.database_url.empty()) {
    options.conninfo = config.database_url;
  } else {
    options.conninfo = fmt::format("host={} dbname=space user={}", config.database_dir(), role);
  }
  return options;
}

}  // namespace store
