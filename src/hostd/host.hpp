#pragma once

#include "hostd/rule_watch.hpp"
#include "hostd/slot_files.hpp"
#include "hostd/validate.hpp"
#include "os/cgroup.hpp"
#include "wire/config.hpp"

#include <linux/filter.h>
#include <sys/types.h>

#include <map>
#include <memory>
#include <optional>

namespace hostd {

struct Answer {
  Reply reply;
  std::vector<os::Fd> fds;
};

/// The descriptors that came with a request, empty where none did.
struct Passed {
  os::Fd disk;
  os::Fd memory;
  os::Fd changes;
};

/// The actions themselves: slots, jails and machines of one installation on this host. One thread;
/// runs as root.
///
/// Invariant: what exists is what the kernel and `<run>/hostd` say. The members are caches and the
/// status of children that ended, which only a parent ever learns. Machines outlive this object.
class Host {
 public:
  /// Prepares directories and repairs what a killed predecessor left half-made.
  static base::Result<std::unique_ptr<Host>> open(wire::Config config);
  ~Host();

  /// Everything but end_vmm.
  Answer handle(Request const& request, Passed passed);

  /// end_vmm in two parts, because a large machine takes its time to die and others shall not wait
  /// for it: begin_end() kills; then try_end() until it gives the answer.
  std::optional<Answer> begin_end(Request const& request);
  std::optional<Answer> try_end(std::uint32_t slot);

  /// Collects children that ended. On SIGCHLD, and before an answer that tells a state.
  void reap();

  Bounds bounds() const noexcept;

 private:
  /// What is remembered of a slot.
  struct Kept {
    os::Fd netns;
    os::Fd tap;
    pid_t pid = 0;
    os::Fd pidfd;
    bool child = false;
    std::optional<int> wait_status;
    RuleState rules;
    std::optional<std::uint64_t> net_bytes_per_s;  // the budget in its rules, where we made them
  };

  struct KeptGateway {
    pid_t pid = 0;
    os::Fd pidfd;
    bool child = false;
    bool collected = false;
  };

  Host(wire::Config config, std::unique_ptr<os::ControlGroups> groups);
  base::Result<void> prepare();
  void repair();
  void repair_slot(std::uint32_t slot);
  void end_strays();

  Answer hello() const;
  Answer make_slot(std::uint32_t slot);
  Answer remove_slot(std::uint32_t slot);
  Answer start_vmm(Request const& request, Passed const& passed);
  Answer attach_vmm(std::uint32_t slot);
  Answer open_memory(std::uint32_t slot);
  Answer inspect_slot(std::uint32_t slot);
  Answer dial(std::uint32_t slot, std::uint16_t port);

  // host_gateway.cpp
  Answer start_gateway(std::uint32_t slot);
  Answer attach_gateway(std::uint32_t slot);
  Answer end_gateway(std::uint32_t slot);
  Answer renew_broker(std::uint32_t slot);
  Answer let_through(std::uint32_t slot, Passage const& passage);
  Answer check_rules(std::uint32_t slot, Passage const& passage);
  Answer check_uplink();
  Answer count_drops(std::uint32_t slot);
  base::Result<Answer> try_start_gateway(std::uint32_t slot);
  base::Result<void> launch_gateway(std::uint32_t slot, int errors);
  base::Result<void> connect_gateway(std::uint32_t slot, Answer& answer);
  bool find_gateway(std::uint32_t slot);
  /// Kills it and takes everything of it away; fails when it does not die.
  base::Result<void> clear_gateway(std::uint32_t slot);
  base::Result<void> refresh_gateway_view();
  base::Result<os::Fd> uplink() const;

  std::uint32_t gateway_user_of(std::uint32_t slot) const {
    return config_.slot_uid_base + config_.slots_max + slot;
  }

  /// What a machine is started with: openings of our own.
  struct Files {
    os::Fd disk;
    std::uint64_t disk_bytes = 0;
    os::Fd memory;   // empty for a plain boot
    os::Fd changes;  // empty unless there are changed pages
  };

  static base::Result<Files> reopen_files(Machine const& machine, Passed const& passed);
  base::Result<Answer> try_start(Request const& request, Files opened);
  base::Result<void> launch(Request const& request, Files const& opened, int errors);
  base::Result<void> connect_ends(std::uint32_t slot, Answer& answer);
  // host_firecracker.cpp
  base::Result<void> launch_firecracker(Request const& request, Files const& opened);
  base::Result<void> connect_firecracker(std::uint32_t slot, Answer& answer);
  base::Result<void> refresh_firecracker_view();
  std::string firecracker_program() const;
  void undo_start(std::uint32_t slot);
  bool finish_end(std::uint32_t slot, Answer& answer);

  base::Result<void> refresh_view(bool kvm);
  os::GroupLimits limits_for(Machine const& machine, os::Fd const& disk) const;

  SlotFiles files(std::uint32_t slot) const { return {directory_, slot}; }

  std::uint32_t user_of(std::uint32_t slot) const { return config_.slot_uid_base + slot; }

  SlotState state_of(std::uint32_t slot);
  bool find_machine(std::uint32_t slot);
  base::Result<int> netns_of(std::uint32_t slot);
  base::Result<void> limit_network_of(Kept& kept, std::uint64_t bytes_per_s);
  void describe(std::uint32_t slot, Reply& reply);

  bool watches_rules() const;

  wire::Config config_;
  std::string directory_;  // <run>/hostd
  std::unique_ptr<os::ControlGroups> groups_;
  std::map<std::uint32_t, Kept> kept_;
  std::map<std::uint32_t, KeptGateway> gateways_;
  RuleWatch rule_watch_;
  os::Fd gateway_view_;
  std::string gateway_view_key_;
  os::Fd firecracker_view_;
  std::string firecracker_view_key_;
  std::vector<sock_filter> firecracker_filter_;
  os::Fd view_;
  std::string view_key_;  // which files the view was made of
  std::vector<sock_filter> filter_;
  bool filter_kvm_ = false;
};

}  // namespace hostd
