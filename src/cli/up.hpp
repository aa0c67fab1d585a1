#pragma once

#include "base/result.hpp"
#include "wire/config.hpp"

#include <optional>

/// `space up` and `space down`: one installation on this host, from nothing to running and back.
namespace cli {

/// What the command line said; what it did not say stays as it was at the last `space up`.
struct UpOptions {
  std::optional<std::string> data_dir, run_dir, instance, domain, database_url, node_name,
      accelerator, program_dir, guest_dir, uplink, upstream_ca_file;
  std::optional<std::uint16_t> http_port, tls_port;
  std::optional<std::uint32_t> slot_uid_base, slots_max, memory_mib_max, vcpus_max, pool_mib_max,
      disk_mib_per_s_max, disk_ops_per_s_max, net_mib_per_s_max, warm_target;
  std::vector<std::string> listen_addresses, resolvers, private_routes;
  bool config_only = false;  // write the configuration and stop
  bool show = false;         // change nothing, print where the platform is
  bool foreground = false;   // be the supervisor (systemd)
  bool json = false;
};

/// Pure: `saved` with what the options say. The domain follows the TLS port unless it was chosen.
wire::Config settle(wire::Config saved, UpOptions const& options);

int up(UpOptions const& options);

struct DownOptions {
  std::string run_dir, data_dir;  // "" = SPACE_RUN_DIR, SPACE_DATA_DIR or the default
  bool purge = false;
  bool no_suspend = false;
  bool json = false;
};

int down(DownOptions const& options);

/// `space supervise`, started by up().
int run_supervisor(std::string const& config_path);

/// `space end-sandboxes`: suspends what runs on a host, then asks its worker to end what could not
/// be suspended. What came of it is in suspends_report_path().
int end_sandboxes(std::string const& config_path);

/// While this file is there, the next stop ends sandboxes instead of suspending them.
std::string no_suspend_path(wire::Config const& config);
/// {"suspended":N,"failed":[{"sandbox","why"}]} of the last stop.
std::string suspends_report_path(wire::Config const& config);

/// `space clear-slots`: hostd removes every slot, whatever lives in it. Only for an installation
/// that stops.
int clear_slots(std::string const& config_path);

}  // namespace cli
