#pragma once

#include "cli/output.hpp"
#include "wire/config.hpp"
#include "wire/worker.hpp"

#include <boost/describe/enum.hpp>

/// `space doctor`: what this host can do, proven by doing it, what follows, and what to type.
namespace cli {

BOOST_DEFINE_ENUM_CLASS(Health, ok, degraded, broken)

struct Finding {
  std::string what;  // "accelerator"
  Health health = Health::ok;
  std::string proof{};    // what was done and seen
  std::string follows{};  // what it means for safety or speed; "" when nothing
  std::string fix{};      // the command that helps; "" when there is nothing to fix
};
BOOST_DESCRIBE_STRUCT(Finding, (), (what, health, proof, follows, fix))

struct DoctorReport {
  std::string health;  // the worst of the findings
  std::vector<Finding> findings;
};
BOOST_DESCRIBE_STRUCT(DoctorReport, (), (health, findings))

/// Each probe acts on the host for real, in namespaces and files of its own, and removes them
/// again.
Finding probe_reflink(wire::Config const& config);
Finding probe_control_groups(std::string const& root = "/sys/fs/cgroup");
Finding probe_nft();
Finding probe_tap();
/// `uplink: host`: link, rules and forwarding as they have to be, and nobody else's in the way.
Finding probe_uplink(wire::Config const& config);
Finding probe_resolver(wire::Config const& config);
Finding probe_database(wire::Config const& config);
Finding probe_disk_space(wire::Config const& config);
/// What is free in the file system that sandboxes' disks lie in.
Finding probe_pool_space(wire::Config const& config);
Finding probe_ports(wire::Config const& config);
Finding probe_programs(wire::Config const& config);
Finding probe_emulator();
/// What this host's worker says about itself; root and the platform's own users may ask.
base::Result<wire::NodeReport> ask_worker(wire::Config const& config);
/// Asks the worker what it proved; without one says what is known of /dev/kvm.
Finding probe_accelerator(wire::Config const& config);

/// Suspended sandboxes and snapshots here that the database has never heard of: nobody removes
/// them.
Finding probe_unclaimed(wire::Config const& config);
/// Pure: of the answer to GET /v1/nodes, for the node of that name with that data directory.
Finding judge_unclaimed(wire::json::value const& nodes,
                        std::string const& node,
                        std::string const& dir);

/// A chain of somebody else's that refuses what this host forwards, and what lets us through it.
struct Blocker {
  std::string chain;  // "ip filter FORWARD"
  std::string fix;
};

/// Pure: found in what `nft -j list ruleset` says. A table with a rule that names `link` is none.
std::vector<Blocker> forward_blockers(std::string const& ruleset, std::string const& link);

/// Pure: the page for people.
std::string render(std::vector<Finding> const& findings);
Health worst(std::vector<Finding> const& findings) noexcept;

/// Exit code 1 when something is broken.
int doctor(Output const& output);

}  // namespace cli
