#pragma once

#include "hostd/client.hpp"
#include "http/client.hpp"
#include "wire/config.hpp"
#include "worker/accelerator.hpp"
#include "worker/audit_feed.hpp"
#include "worker/base_shelf.hpp"
#include "worker/capacity.hpp"
#include "worker/dialer.hpp"
#include "worker/disk.hpp"
#include "worker/ended_log.hpp"
#include "worker/engine.hpp"
#include "worker/gate.hpp"
#include "worker/hostd_launcher.hpp"
#include "worker/journal.hpp"
#include "worker/reflections.hpp"
#include "worker/slot_pool.hpp"
#include "worker/state_store.hpp"

namespace worker {

/// How long a boot may take. Counted in progress, not in time: a busy host makes every boot slow,
/// and none of them dead.
struct BootLimits {
  std::chrono::milliseconds cpu{
      60'000};  // processor time the VMM may burn before its agent answers
  std::chrono::milliseconds stall{45'000};  // without using the processor at all
  std::chrono::milliseconds all{600'000};   // whatever it does
};

/// What every sandbox of this host shares. Owned by the Worker, outlives its sandboxes. One thread.
struct Host {
  Host(boost::asio::any_io_executor on, wire::Config from);

  wire::Config config;
  boost::asio::any_io_executor executor;
  hostd::Client hostd;
  HostdLauncher launcher;
  EngineDriver driver;
  EngineChoice engine;
  Journal journal;
  DiskPool disks;
  SlotPool slots;
  Dialer dialer;
  Gate boots;
  EndedLog ended;
  AuditFeed audit;
  Reflections reflections;
  http::Client broker;
  Capacity capacity;
  AcceleratorChoice accelerator;
  StateStore suspended;
  StateStore snapshots;
  BaseFiles base_files;
  BaseShelf bases;
  CloneMethod clone_method = CloneMethod::copy;
  std::string identity;  // machine_identity()
  std::uint64_t tsc_khz = 0;
  std::uint32_t hostd_features = 0;
  BootLimits boot_limits;

  /// Memory that a VMM needs beside its guest's, in MiB: reserved here, and the limit that hostd
  /// sets.
  std::uint64_t overhead_mib(vmm::Accelerator by) const noexcept;

  /// Do sandboxes here get a gateway? Without one they have no network at all.
  bool has_uplink() const { return config.uplink != "none"; }

  /// What stays free in the pool's file system beside a new sandbox's disk, at most.
  std::uint64_t pool_headroom_mib = 256;
  std::chrono::milliseconds quiet_step{100};  // three of them without a start: time to make ahead
  std::chrono::milliseconds restore_patience{30'000};  // of the VMM, not of the guest
  std::chrono::milliseconds exercise_patience{60'000};
  std::chrono::milliseconds init_patience{30'000};  // for one try at /health and /init
  std::chrono::milliseconds health_interval{15'000};
  std::chrono::milliseconds health_patience{10'000};
  std::chrono::milliseconds health_repeat{
      1'000};  // between refusals, of which three in a row are an agent's loss
};

/// What saved machines depend on, worked out at the first call. Errors: as identity_of().
async::Task<std::string> machine_identity(Host& host);

/// Of a process: resident memory in bytes, and used processor time. 0 when it is gone.
std::uint64_t resident_bytes_of(std::int32_t pid);
std::chrono::milliseconds cpu_time_of(std::int32_t pid);

}  // namespace worker
