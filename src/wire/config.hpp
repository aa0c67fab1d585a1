#pragma once

#include "wire/codec.hpp"

/// One installation on one host: `<run_dir>/config.json`, written by `space up`, read by every
/// program of the installation (`--config FILE`). Several installations live side by side when
/// instance, directories, ports and user-id range differ: that is what tests do.
namespace wire {

struct Config {
  std::string instance = "space";  // [a-z][a-z0-9]{0,7}: prefix of control groups and namespaces
  std::string data_dir = "/var/lib/space";
  std::string run_dir = "/run/space";
  std::string domain = "space.localhost:7443";  // what E2B_DOMAIN is set to; API at api.<domain>
  std::vector<std::string> listen_addresses = {"127.0.0.1", "::1"};
  std::uint16_t http_port = 7380;
  std::uint16_t tls_port = 7443;
  std::string database_url;  // libpq; "" = the embedded cluster
  std::string node_name = "node-1";
  std::uint32_t slot_uid_base =
      700'000;  // user and group id of slot n; gateways follow at slot_uid_base + slots_max
  std::uint32_t slots_max = 128;
  std::uint32_t memory_mib_max = 0;  // for all sandboxes together; 0 = three quarters of the host
  std::uint32_t vcpus_max = 0;       // 0 = 16 per core (vCPUs are shared)
  std::uint32_t pool_mib_max = 0;  // size of a loop-mounted pool; 0 = four fifths of the free space
  // What one sandbox may move, so that its flood leaves the disk and the packet path to its
  // neighbours. The defaults are far above what a build or a download needs, and below what the
  // emulator's or the kernel's queues carry. 0 = no limit.
  std::uint32_t disk_mib_per_s_max = 256;
  std::uint32_t disk_ops_per_s_max = 20'000;
  std::uint32_t net_mib_per_s_max = 64;  // each direction
  std::uint32_t warm_target =
      2;  // stopped machines kept ready per template build that is used; 0 = none
  bool base_snapshots = true;  // false: every machine boots cold
  std::uint32_t translation_cache_mib =
      64;  // of the emulator, per machine without KVM; part of what a machine reserves
  std::string accelerator = "auto";  // auto, kvm, tcg
  std::string program_dir;           // where the space-* programs lie
  std::vector<std::string> cors_origins = {
      "*"};  // web pages that may call the API (keys travel in headers only)
  std::uint32_t requests_per_second_max = 200;  // of the API, per key; twice as many at once
  std::string guest_dir;  // vmlinux, initrd.gz (root-owned); "" = <data_dir>/guest

  // Users by role; made at install (`space up`), each the owner of its own socket directory.
  std::string api_user = "space-api";
  std::string controller_user = "space-controller";
  std::string proxy_user = "space-proxy";
  std::string worker_user = "space-worker";
  std::string database_user = "space-db";
  std::string broker_user = "space-broker";
  std::vector<std::string>
      resolvers;                // upstream DNS of the gateways; empty = the host's /etc/resolv.conf
  std::string uplink = "none";  // none: no way out; host: through the host's own network; else a
                                // network namespace below /run
  std::vector<std::string>
      private_routes;            // networks that gateways may dial although they are private
  std::string upstream_ca_file;  // authorities that gateways trust for upstreams; "" = the system's

  std::string check() const;

  std::string guest() const { return guest_dir.empty() ? data_dir + "/guest" : guest_dir; }

  std::string pool() const { return data_dir + "/pool"; }

  // Sockets: each in a directory of its own (0750, owner = the serving user, group = a group whose
  // members are the clients).
  std::string hostd_socket() const {
    return run_dir + "/hostd/hostd.sock";
  }  // SEQPACKET, src/hostd/protocol.hpp

  std::string worker_socket() const {
    return run_dir + "/worker/worker.sock";
  }  // HTTP, src/wire/worker.hpp

  std::string dial_socket() const {
    return run_dir + "/worker/dial.sock";
  }  // descriptor passing, src/wire/worker.hpp

  std::string api_socket() const {
    return run_dir + "/api/api.sock";
  }  // HTTP, public routes; the proxy is its client

  std::string internal_socket() const {
    return run_dir + "/api/internal.sock";
  }  // HTTP, src/wire/route.hpp; proxy and controller only

  std::string proxy_socket() const {
    return run_dir + "/proxy/proxy.sock";
  }  // HTTP, the data plane; the API is its client

  std::string broker_socket() const {
    return run_dir + "/broker/broker.sock";
  }  // HTTP, src/wire/credential.hpp; API and worker

  std::string use_socket() const {
    return run_dir + "/broker-use/use.sock";
  }  // JSON lines; gateways

  std::string database_dir() const { return run_dir + "/postgres"; }  // .s.PGSQL.5432
};
BOOST_DESCRIBE_STRUCT(Config,
                      (),
                      (instance,
                       data_dir,
                       run_dir,
                       domain,
                       listen_addresses,
                       http_port,
                       tls_port,
                       database_url,
                       node_name,
                       slot_uid_base,
                       slots_max,
                       memory_mib_max,
                       vcpus_max,
                       pool_mib_max,
                       disk_mib_per_s_max,
                       disk_ops_per_s_max,
                       net_mib_per_s_max,
                       warm_target,
                       base_snapshots,
                       translation_cache_mib,
                       accelerator,
                       program_dir,
                       cors_origins,
                       requests_per_second_max,
                       guest_dir,
                       api_user,
                       controller_user,
                       proxy_user,
                       worker_user,
                       database_user,
                       broker_user,
                       resolvers,
                       uplink,
                       private_routes,
                       upstream_ca_file))

/// Reads and checks a configuration file.
base::Result<Config> load_config(std::string const& path);

}  // namespace wire
