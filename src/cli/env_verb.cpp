#include "cli/env_verb.hpp"

#include "cli/installation.hpp"
#include "cli/version.hpp"
#include "wire/agent.hpp"
#include "wire/codec.hpp"

namespace cli {

int env(Global const& global, bool plain_http) {
  auto const out = Output::standard(global.as_json);
  auto config = wire::load_config(run_dir_or_default("") + "/config.json");
  if (!config) {
    return out.fail(
        {base::Code::unavailable, "the platform does not run on this host"},
        "Start it: space up   Elsewhere: run space env on the platform's host and copy the lines");
  }
  auto target = find_target(global.api_url, global.key_file);
  if (!target) return out.fail(target.error());
  auto const& key = target->key.reveal();
  if (global.as_json) {
    out.document(json::object{{"E2B_DOMAIN", config->domain},
                              {"E2B_API_KEY", key},
                              {"SSL_CERT_FILE", ca_path(*config)},
                              {"E2B_API_URL", http_address(*config)},
                              {"E2B_SANDBOX_URL", http_address(*config)}});
    return 0;
  }
  out.raw(plain_http ? e2b_lines_plain(*config, key) : e2b_lines(*config, key));
  return 0;
}

int show_version(Global const& global) {
  auto const out = Output::standard(global.as_json);
  if (global.as_json) {
    out.document(
        json::object{{"version", version}, {"api", api_version}, {"envd", wire::envd_version}});
  } else {
    out.line(fmt::format("space {}  (API version {}, in-guest protocol {})",
                         version,
                         api_version,
                         wire::envd_version));
  }
  return 0;
}

}  // namespace cli
