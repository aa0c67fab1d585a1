#include "cli/installation.hpp"

#include <cstdlib>

namespace cli {
namespace {

std::string choose(std::string const& given, char const* variable, std::string_view otherwise) {
  if (!given.empty()) return given;
  char const* value = std::getenv(variable);  // NOLINT(concurrency-mt-unsafe): one thread
  return value && *value ? value : std::string(otherwise);
}

}  // namespace

std::string run_dir_or_default(std::string const& given) {
  return choose(given, "SPACE_RUN_DIR", "/run/space");
}

std::string data_dir_or_default(std::string const& given) {
  return choose(given, "SPACE_DATA_DIR", "/var/lib/space");
}

std::string saved_config_path(std::string const& data_dir) {
  return data_dir + "/config.json";
}

std::string admin_key_path(wire::Config const& config) {
  return config.data_dir + "/admin.key";
}

std::string ca_path(wire::Config const& config) {
  return config.data_dir + "/ca/ca.pem";
}

std::string http_address(wire::Config const& config) {
  return fmt::format("http://127.0.0.1:{}", config.http_port);
}

std::string https_address(wire::Config const& config) {
  return fmt::format("https://api.{}", config.domain);
}

std::string e2b_lines(wire::Config const& config, std::string const& key) {
  return fmt::format("export E2B_DOMAIN={}\nexport E2B_API_KEY={}\nexport SSL_CERT_FILE={}\n",
                     config.domain,
                     key,
                     ca_path(config));
}

std::string e2b_lines_plain(wire::Config const& config, std::string const& key) {
  return fmt::format("export E2B_API_URL={0}\nexport E2B_SANDBOX_URL={0}\nexport E2B_API_KEY={1}\n",
                     http_address(config),
                     key);
}

wire::Config config_of_host() {
  auto config = wire::load_config(run_dir_or_default("") + "/config.json");
  if (!config) config = wire::load_config(saved_config_path(data_dir_or_default("")));
  if (config) return std::move(*config);
  wire::Config fresh;
  fresh.data_dir = data_dir_or_default("");
  fresh.run_dir = run_dir_or_default("");
  return fresh;
}

}  // namespace cli
