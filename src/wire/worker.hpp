#pragma once

#include "wire/codec.hpp"
#include "wire/credential.hpp"
#include "wire/policy.hpp"

/// What the API, the controller and the proxy say to a worker: HTTP/1.1 with JSON on `worker.sock`,
/// plus descriptor passing on `dial.sock`. A worker checks the peer's user id; whoever acts with an
/// epoch older than the worker's gets 409 `conflict`.
///
///   GET    /node                            → NodeReport
///   GET    /sandboxes                       → {"sandboxes":[WorkerSandbox]}
///   POST   /sandboxes          StartSandbox → WorkerSandbox   (returns when the agent has
///   answered; idempotent
///                                             per id + epoch: a repeat waits for or returns the
///                                             first one's result)
///   GET    /sandboxes/{id}                  → WorkerSandbox
///   DELETE /sandboxes/{id}?epoch=N[&cause=host_stopped]
///                                           → 200 EndedSandbox when everything is released; also
///                                           when it never was here
///                                             (also of a paused or suspended one: its files go,
///                                             too)
///   POST   /sandboxes/{id}/pause    Epoch   → WorkerSandbox paused: its processors stand still,
///   memory stays POST   /sandboxes/{id}/resume   Epoch   → WorkerSandbox running: the same
///   machine, told that time has passed POST   /sandboxes/{id}/suspend  Epoch   → WorkerSandbox
///   suspended: all of it durable on disk, everything else
///                                             released. From running and paused. When it fails it
///                                             is as it was before
///   POST   /sandboxes/{id}/restore  StartSandbox → WorkerSandbox running. The suspended sandbox of
///   that id; its epoch is greater
///                                             than that of the life that was suspended; token,
///                                             policy and credentials are these; an empty env
///                                             changes none. 409 conflict: not suspended here; 422
///                                             failed_precondition with the reason: its state is
///                                             damaged or of another host, processor, kernel or
///                                             VMM: it stays suspended, see lost_reason
///   POST   /sandboxes/{id}/snapshot TakeSnapshot → SnapshotReport; the sandbox stands still for a
///   moment and goes on GET    /snapshots                       → {"snapshots":[SnapshotReport]}
///   DELETE /snapshots/{snapshot}            → 204, also when it never was here. What was started
///   from it lives on POST   /drain  SetDrain                 → NodeReport; with `on` new sandboxes
///   are refused: unavailable PUT    /sandboxes/{id}/token  SetToken  → 204 (the agent knows the
///   new token) PUT    /sandboxes/{id}/policy SetPolicy → GatewayApplied (in force on live
///   connections, too) GET    /sandboxes/{id}/decisions[?follow=0]
///                                           → NDJSON stream of audit records (GatewayDecision with
///                                           time, sandbox, epoch),
///                                             first the latest that are remembered; an empty line
///                                             every 5 s; ends with the sandbox, with follow=0
///                                             after the remembered ones
///   GET    /audit?sandbox=ID&after=N&limit=N → {"records":[…],"next_after":N,"more":…}: a page of
///   the log on disk GET    /sandboxes/{id}/metrics          → the agent's /metrics GET
///   /sandboxes/{id}/console          → text/plain, the last 64 KiB of the guest's console POST
///   /reflected/taken  Reflected      → 204: the API has stored it and brought it everywhere; the
///   worker forgets it GET    /ended                           → NDJSON of EndedSandbox, first
///   those of the last 10 minutes; an empty line every 5 s
/// Errors: {"code":"exhausted","message":"…"} with the HTTP status of the code.
namespace wire {

struct StartSandbox {
  std::string sandbox;      // base::SandboxId
  std::uint64_t epoch = 0;  // ≥ 1, grows with every life of this sandbox
  std::string build;        // template build id: <pool>/templates/<build>/disk.img
  std::uint32_t vcpus = 1;
  std::uint32_t memory_mib = 512;
  std::uint32_t disk_mib = 4096;
  std::map<std::string, std::string> env;
  std::string access_token;  // "" = the agent checks none (E2B `secure: false`)
  std::string default_user = "user";
  std::string default_workdir;  // "" = the user's home
  std::optional<EffectivePolicy>
      policy;                      // absent = blocked; of no meaning where the host has no uplink
  std::vector<Lease> credentials;  // gateway_uid is filled in by the worker
  std::string from_snapshot;  // "" = from the template's build; else the id of a named snapshot of
                              // this host
  bool cold = false;  // boot, although a warm machine or a base snapshot would do; for measurements

  static bool required(std::string_view name) {
    return name == "sandbox" || name == "epoch" || name == "build";
  }
};
BOOST_DESCRIBE_STRUCT(StartSandbox,
                      (),
                      (sandbox,
                       epoch,
                       build,
                       vcpus,
                       memory_mib,
                       disk_mib,
                       env,
                       access_token,
                       default_user,
                       default_workdir,
                       policy,
                       credentials,
                       from_snapshot,
                       cold))

/// One step of a create, for the time line: milliseconds since the worker got the request.
struct TimelineStep {
  std::string step;  // admitted, disk_cloned, slot_taken, vmm_started, agent_answered, initialised
  double at_ms = 0;
};
BOOST_DESCRIBE_STRUCT(TimelineStep, (), (step, at_ms))

struct WorkerSandbox {
  std::string sandbox;
  std::uint64_t epoch = 0;
  std::string state;  // starting, running, paused, suspending, suspended, restoring, ending
  std::string build;
  std::uint32_t vcpus = 0;
  std::uint32_t memory_mib = 0;
  std::uint32_t disk_mib = 0;
  std::int32_t vmm_pid = 0;
  std::uint64_t resident_bytes = 0;  // of the VMM
  std::string
      started_by;  // "warm machine", "base snapshot", "cold boot", "snapshot", "suspended state"
  std::vector<TimelineStep> timeline;
  std::uint64_t suspended_bytes =
      0;  // on disk for the suspended state, beyond what it shares with others
  std::string
      lost_reason;  // why the suspended state cannot be used; "" = nothing is known against it
};
BOOST_DESCRIBE_STRUCT(WorkerSandbox,
                      (),
                      (sandbox,
                       epoch,
                       state,
                       build,
                       vcpus,
                       memory_mib,
                       disk_mib,
                       vmm_pid,
                       resident_bytes,
                       started_by,
                       timeline,
                       suspended_bytes,
                       lost_reason))

struct EndedSandbox {
  std::string sandbox;
  std::uint64_t epoch = 0;
  /// deleted (asked for), host_stopped (the platform is being stopped), guest_shutdown,
  /// guest_reboot, guest_panic, vmm_killed, vmm_out_of_memory, vmm_crashed, agent_lost,
  /// start_failed, unknown
  std::string cause;
  std::string detail;        // a sentence for the owner, e.g. "the guest kernel panicked"
  std::string console_tail;  // last lines of the console
  std::string ended_at;      // RFC 3339
};
BOOST_DESCRIBE_STRUCT(EndedSandbox, (), (sandbox, epoch, cause, detail, console_tail, ended_at))

struct SetToken {
  std::uint64_t epoch = 0;
  std::string access_token;

  static bool required(std::string_view) { return true; }
};
BOOST_DESCRIBE_STRUCT(SetToken, (), (epoch, access_token))

struct SetPolicy {
  std::uint64_t epoch = 0;
  EffectivePolicy policy;
  std::optional<std::vector<Lease>>
      credentials;  // replaces all of the sandbox's; absent = they stay

  static bool required(std::string_view name) { return name != "credentials"; }
};
BOOST_DESCRIBE_STRUCT(SetPolicy, (), (epoch, policy, credentials))

/// Whose life is meant: a request with an older epoch than the worker's is refused.
struct Epoch {
  std::uint64_t epoch = 0;

  static bool required(std::string_view) { return true; }
};
BOOST_DESCRIBE_STRUCT(Epoch, (), (epoch))

struct TakeSnapshot {
  std::uint64_t epoch = 0;
  std::string
      snapshot;  // its id: a plain name (letters, digits, - and _, at most 64), new on this host

  static bool required(std::string_view) { return true; }
};
BOOST_DESCRIBE_STRUCT(TakeSnapshot, (), (epoch, snapshot))

struct SnapshotReport {
  std::string snapshot;
  std::string build;  // of the template that it goes back to
  std::uint32_t vcpus = 0;
  std::uint32_t memory_mib = 0;
  std::uint32_t disk_mib = 0;
  std::uint64_t bytes = 0;   // on disk, beyond what it shares with others
  double paused_ms = 0;      // how long its sandbox stood still
  std::string sandbox = {};  // that it was taken of
};
BOOST_DESCRIBE_STRUCT(SnapshotReport,
                      (),
                      (snapshot, build, vcpus, memory_mib, disk_mib, bytes, paused_ms, sandbox))

struct SetDrain {
  bool on = false;

  static bool required(std::string_view) { return true; }
};
BOOST_DESCRIBE_STRUCT(SetDrain, (), (on))

/// Stopped machines that wait for their sandbox.
struct WarmReport {
  std::string build;
  std::uint32_t ready = 0;
  std::uint32_t target = 0;
};
BOOST_DESCRIBE_STRUCT(WarmReport, (), (build, ready, target))

struct BaseSnapshotReport {
  std::string build;
  bool usable = false;
  std::string reason;  // why not
};
BOOST_DESCRIBE_STRUCT(BaseSnapshotReport, (), (build, usable, reason))

/// A credential that a server sent back to the guest: nobody is to use it until somebody has
/// looked. Told until it was taken.
struct Reflected {
  std::string sandbox;
  std::string credential;  // its inside id
  std::uint32_t version = 0;
  std::string name;        // as the sandbox's policy calls it
  std::string host;        // that sent it back
  std::int64_t at_us = 0;  // since 1970

  static bool required(std::string_view) { return true; }
};
BOOST_DESCRIBE_STRUCT(Reflected, (), (sandbox, credential, version, name, host, at_us))

struct NodeReport {
  std::string name;
  std::string driver;                  // qemu
  std::string accelerator;             // kvm, tcg
  std::string accelerator_proof;       // how it was proven, a sentence
  bool boundary = false;               // may hostile code run here? false under tcg
  std::vector<std::string> unlimited;  // what cannot be limited on this host, e.g. "io"
  std::uint32_t memory_mib_total = 0;
  std::uint32_t memory_mib_used = 0;
  std::uint32_t vcpus_total = 0;
  std::uint32_t vcpus_used = 0;
  std::uint64_t disk_mib_total = 0;
  std::uint64_t disk_mib_used = 0;
  std::uint32_t slots_total = 0;
  std::uint32_t slots_used = 0;
  std::vector<std::string> builds;  // template builds whose images are here
  std::string
      disk_clone;  // reflink, or copy where the pool's file system cannot share blocks (slow)
  bool draining = false;  // takes no new sandboxes
  std::vector<WarmReport> warm;
  std::vector<BaseSnapshotReport> base_snapshots;
  std::vector<Reflected> reflected;
  /// At rest here (sandboxes, snapshots) and never heard of in this installation's database; filled
  /// in by the controller. The first hundred; they are kept until an administrator says that they
  /// may go, which is `release_unclaimed`.
  std::vector<std::string> unclaimed;
  std::uint32_t unclaimed_total = 0;
  bool release_unclaimed = false;
};
BOOST_DESCRIBE_STRUCT(NodeReport,
                      (),
                      (name,
                       driver,
                       accelerator,
                       accelerator_proof,
                       boundary,
                       unlimited,
                       memory_mib_total,
                       memory_mib_used,
                       vcpus_total,
                       vcpus_used,
                       disk_mib_total,
                       disk_mib_used,
                       slots_total,
                       slots_used,
                       builds,
                       disk_clone,
                       draining,
                       warm,
                       base_snapshots,
                       reflected,
                       unclaimed,
                       unclaimed_total,
                       release_unclaimed))

/// dial.sock: a stream socket; each request is one JSON line, answered in order by one JSON line.
/// With `ok` true exactly one descriptor comes along (SCM_RIGHTS): a TCP socket whose connect() to
/// the guest's port is under way.
struct DialRequest {
  std::string sandbox;
  std::uint64_t epoch = 0;
  std::uint16_t port = 0;

  static bool required(std::string_view) { return true; }
};
BOOST_DESCRIBE_STRUCT(DialRequest, (), (sandbox, epoch, port))

struct DialReply {
  bool ok = false;
  std::string code;  // when not ok
  std::string message;
};
BOOST_DESCRIBE_STRUCT(DialReply, (), (ok, code, message))

}  // namespace wire
