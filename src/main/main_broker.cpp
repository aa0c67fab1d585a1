#include "base/log.hpp"
#include "broker/service.hpp"

#include <cstring>

int main(int argc, char** argv) {
  base::log::configure("space-broker", base::log::Level::info);
  if (argc != 3 || std::strcmp(argv[1], "--config") != 0) {
    base::log::error("usage", {{"what", "space-broker --config FILE"}});
    return 2;
  }
  if (auto hardened = broker::harden(); !hardened) {
    base::log::error("harden", {{"what", hardened.error().message()}});
    return 1;
  }
  auto config = wire::load_config(argv[2]);
  if (!config) {
    base::log::error("config", {{"what", config.error().message()}});
    return 2;
  }
  return async::run_main([&] { return broker::run_broker(*config); });
}
