#pragma once

#include "base/id.hpp"
#include "hostd/protocol.hpp"
#include "os/fd.hpp"

#include <string>

/// The caller's side of space-hostd: for the worker, `space doctor` and tests.
///
/// Every call opens its own connection, sends one request and waits for one reply, so a Client is a
/// path and nothing else: copyable, usable from any thread, and good again as soon as a restarted
/// hostd listens. Calls block (make_slot ~5 ms, start_vmm ~5 ms, end_vmm up to a second, the others
/// well below 1 ms): from a coroutine `co_await async::blocking([client, slot] { return
/// client.make_slot(slot); })`.
///
/// Errors: unavailable (hostd cannot be reached or answered nothing in time; the action may have
/// happened: ask inspect_slot), not_found (no such slot or VMM), conflict (the slot exists, or a
/// VMM lives there), invalid_argument (refused: a bug of the caller), internal (the kernel said no;
/// detail names the step).
namespace hostd {

struct Hello {
  std::uint32_t version = 0;
  std::uint32_t features = 0;  // FeatureBits
};

/// What lives or lived in a slot.
struct Inspected {
  SlotState state = SlotState::absent;
  std::string sandbox;  // "" unless running or exited
  std::uint64_t epoch = 0;
  std::int32_t pid = 0;       // running only
  std::uint32_t user_id = 0;  // of the slot's processes
};

/// A machine's ends. `pid` is for logs and measurements; act on `pidfd`.
struct Vmm {
  std::string sandbox;
  std::uint64_t epoch = 0;
  std::int32_t pid = 0;
  std::uint32_t user_id = 0;
  os::Fd pidfd;  // readable when the VMM has ended
  os::Fd qmp;    // connected Unix stream; the VMM serves one connection at a time
  os::Fd
      console;    // connected Unix stream: serial line of the guest, hostile bytes; must be drained
  os::Fd errors;  // read end of the VMM's stderr, non-blocking; empty after attach_vmm
  os::Fd exchange;  // Firecracker only: the file of its device state, read-write
};

struct VmmExit {
  std::int32_t wait_status = -1;  // as from waitpid; -1 unknown (hostd was restarted meanwhile)
  bool out_of_memory = false;     // the host's limit on the control group killed it
};

struct Gateway {
  std::int32_t pid = 0;
  std::uint32_t user_id = 0;  // by which the broker knows it
  os::Fd control;             // connected stream
  os::Fd errors;              // read end of its log, non-blocking; empty after attach_gateway
};

/// A VMM's whole memory, for reading: `pages` tells 8 bytes for each of its pages (what
/// /proc/PID/pagemap is in proc(5)), `memory` the bytes at each address. Both end with the process.
struct MachineMemory {
  os::Fd pages;
  os::Fd memory;
};

class Client {
 public:
  explicit Client(std::string socket_path) : path_(std::move(socket_path)) {}

  base::Result<Hello> hello() const;

  /// A namespace with tap and rules, without a way out. `slot` < Config::slots_max. conflict if it
  /// exists.
  base::Result<void> make_slot(std::uint32_t slot) const;
  /// Removes everything of the slot. conflict while a VMM lives or its end was not collected
  /// (end_vmm).
  base::Result<void> remove_slot(std::uint32_t slot) const;

  /// `disk`: a regular file opened for reading and writing, a multiple of 512 bytes; borrowed.
  /// `memory`: for MachineStart::record and restore, borrowed as well.
  /// `changes`: with machine.changed_pages.
  /// A slot takes one VMM in its life: invalid_argument when it is spent.
  base::Result<Vmm> start_vmm(std::uint32_t slot,
                              base::SandboxId const& sandbox,
                              std::uint64_t epoch,
                              Machine const& machine,
                              os::FdRef disk,
                              os::FdRef memory = os::FdRef(-1),
                              os::FdRef changes = os::FdRef(-1)) const;
  /// New connections to what runs there. not_found unless it is running.
  base::Result<Vmm> attach_vmm(std::uint32_t slot) const;
  /// Kills what is left, collects it, removes control group, sockets and record; the slot is spent
  /// then. Also right after the VMM ended by itself. not_found when there never was one; safe to
  /// repeat.
  base::Result<VmmExit> end_vmm(std::uint32_t slot) const;

  /// Of the VMM that runs there; not_found unless one does.
  base::Result<MachineMemory> open_memory(std::uint32_t slot) const;

  /// Never not_found: SlotState::absent instead.
  base::Result<Inspected> inspect_slot(std::uint32_t slot) const;

  /// A non-blocking TCP socket inside the slot whose connect() to the guest's `port` has begun:
  /// wait until it is writable, then read SO_ERROR.
  base::Result<os::Fd> dial(std::uint32_t slot, std::uint16_t port) const;

  /// Lets the slot's guest reach a gateway, which begins closed: see wire/gateway.hpp. conflict
  /// when one runs there already.
  base::Result<Gateway> start_gateway(std::uint32_t slot) const;
  /// A new control connection to the one that runs there; it takes the place of the former one.
  base::Result<Gateway> attach_gateway(std::uint32_t slot) const;
  /// Also when there is none.
  base::Result<void> end_gateway(std::uint32_t slot) const;
  /// Gives the slot's gateway a new connection to the broker. not_found while there is no broker or
  /// no gateway.
  base::Result<void> renew_broker(std::uint32_t slot) const;
  /// What the slot's rules let through to the gateway besides synthetic addresses, from now on.
  base::Result<void> let_through(std::uint32_t slot, Passage const& passage) const;

  /// Are the slot's packet rules exactly ours, with this passage? `denied` when they were not:
  /// it is closed now.
  base::Result<void> check_rules(std::uint32_t slot, Passage const& passage) const;
  /// `denied`: the rules of the way out were not ours, and are again. Without `uplink: host` there
  /// is nothing to check.
  base::Result<void> check_uplink() const;

  /// How many frames the slot's guard dropped, by rule, since its rules were loaded. Costs hostd a
  /// process of some 10 ms.
  base::Result<GuardDrops> count_drops(std::uint32_t slot) const;

 private:
  std::string path_;
};

}  // namespace hostd
