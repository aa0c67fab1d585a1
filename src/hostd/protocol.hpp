#pragma once

#include <array>
#include <cstdint>
#include <type_traits>

/// What the worker may ask of space-hostd: this closed list and nothing else. SEQPACKET socket; one
/// fixed Request in, one fixed Reply out, descriptors by SCM_RIGHTS. No paths and no names cross:
/// hostd derives them from its configuration and the slot number. Numbers outside their range are
/// refused.
///
/// hostd keeps no memory that it cannot rebuild: what exists is told by the kernel (namespace
/// files, control groups `<instance>/slot-<n>`, processes with user id slot_uid_base + n; gateways
/// are
/// `<instance>/gateway-<n>` with user id slot_uid_base + slots_max + n) and by
/// `<run_dir>/hostd/slots/<n>`, a record of sandbox id and epoch that it writes before it starts a
/// VMM.
namespace hostd {

inline constexpr std::uint32_t protocol_version = 2;

enum class Action : std::uint32_t {
  hello = 1,    // → version, features
  make_slot,    // slot → namespace, tap, rules; not yet usable twice: a slot dies with its sandbox
  remove_slot,  // slot → gone; refused (busy) while a VMM lives there
  // A Firecracker's ends are [pidfd, api, console, log, exchange] in both answers that tell them.
  start_vmm,   // slot, sandbox, epoch, machine; fds: [disk read-write] and, for record and restore,
               // [memory file], and with changed_pages [those] → pid; fds: [pidfd, qmp, console,
               // stderr]
  attach_vmm,  // slot → record of what runs there, pid; fds: [pidfd, qmp, console] after a worker's
               // restart
  end_vmm,     // slot → kills what is left (whole control group), reaps, removes the group and the
               // record → exit
  inspect_slot,  // slot → record without descriptors (state, sandbox, epoch, pid, user id)
  dial,  // slot, port → fds: [TCP socket inside the slot, marked, connect() to the guest begun]
  start_gateway,   // slot → pid, user id; fds: [control socket, stderr]. busy when one runs there
  attach_gateway,  // slot → pid, user id; fds: [control socket] after a worker's restart
  end_gateway,     // slot → gone; the guest's connections are refused from then on
  open_memory,  // slot → fds: [page map, memory] of the VMM that runs there, for reading alone: how
                // a stopped machine's memory is kept (/proc/PID/pagemap and mem, which tell no
                // other user)
  renew_broker,  // slot → its gateway has a new connection to the broker; absent while none listens
  let_through,   // slot, passage → in force: what of the guest's packets may go to its gateway
  check_rules,   // slot, passage → ok when the slot's packet rules are exactly ours; altered when
                 // somebody changed or flushed them: it is closed then
  check_uplink,  // slot 0 → ok, or altered: the uplink's rules were changed, and are ours again
  count_drops,   // slot → how many frames its guard has dropped since its rules were loaded
};

enum class Status : std::int32_t {
  ok = 0,
  refused = 1,  // unknown action, number out of range, wrong state: a bug of the caller
  absent = 2,   // no such slot or VMM
  busy = 3,     // slot exists already, or a VMM lives there
  failed = 4,   // the kernel said no: see `reason`
  altered = 5,  // somebody else changed rules that are ours
};

enum class Accelerator : std::uint32_t { tcg = 0, kvm = 1 };

/// What runs the machine. firecracker: with KVM alone, without changed pages, where hello says so.
enum class Engine : std::uint32_t { qemu = 0, firecracker = 1 };

/// Where the guest's memory comes from; the machine is the same. A memory file is a regular file of
/// exactly memory_mib. record: it must be opened for reading and writing, and gets what the guest
/// writes. restore: hostd opens it anew for reading alone and the VMM maps it privately; the state
/// of the devices is loaded over the control socket.
enum class MachineStart : std::uint32_t { boot = 0, record = 1, restore = 2 };

struct Machine {
  MachineStart start = MachineStart::boot;
  /// restore: 1 when a file of pages comes along that differ from the memory file
  /// (src/vmm/changed_pages.hpp). hostd reads nothing of it.
  std::uint32_t changed_pages = 0;
  Accelerator accelerator = Accelerator::tcg;
  Engine engine = Engine::qemu;
  std::uint32_t vcpus = 1;
  std::uint32_t memory_mib = 512;
  std::uint32_t tb_size_mib = 64;          // translation cache of the emulator
  std::uint64_t disk_bytes_per_s_max = 0;  // 0 = unlimited; the VMM's throttle
  std::uint64_t disk_ops_per_s_max = 0;
  std::uint64_t net_bytes_per_s_max = 0;  // each direction
  std::uint64_t tsc_khz = 0;              // measured by the worker
};

struct Network {
  std::uint32_t address = 0;  // host byte order, no bits beyond the length
  std::uint32_t bits = 0;
  friend bool operator==(Network const&, Network const&) = default;
};

inline constexpr std::size_t networks_max = 128;

/// Besides the addresses that the DNS front gives out. Replaces what was let through before.
struct Passage {
  std::uint32_t named = 0;  // 1: TCP ports 80 and 443 of any address
  std::uint32_t count = 0;
  std::array<Network, networks_max> networks{};  // TCP to any port; zero beyond `count`
  friend bool operator==(Passage const&, Passage const&) = default;
};

struct Request {
  std::uint32_t version = protocol_version;
  Action action = Action::hello;
  std::uint32_t slot = 0;
  std::uint32_t port = 0;
  std::uint64_t epoch = 0;
  std::array<char, 24> sandbox{};  // base::SandboxId, zero-padded
  Machine machine;
  Passage passage;
};

/// exited: the VMM is gone, end_vmm is due. spent: its VMM was ended, only remove_slot is left.
enum class SlotState : std::uint32_t { absent = 0, empty = 1, running = 2, exited = 3, spent = 4 };

/// Frames by the rule that dropped them: guard_drops.hpp names them.
inline constexpr std::size_t guard_rules = 10;
using GuardDrops = std::array<std::uint64_t, guard_rules>;

struct Reply {
  Status status = Status::ok;
  std::array<char, 124> reason{};  // what failed and why, zero-terminated; for the operator's log
  SlotState state = SlotState::absent;
  std::int32_t pid = 0;
  std::uint64_t epoch = 0;
  std::array<char, 24> sandbox{};
  std::uint32_t user_id = 0;
  std::int32_t wait_status = -1;    // as from waitpid; -1 unknown (hostd was restarted meanwhile)
  std::uint32_t out_of_memory = 0;  // the control group's limit killed it
  std::uint32_t features = 0;       // hello: FeatureBits
  Engine engine = Engine::qemu;     // start_vmm, attach_vmm
  GuardDrops drops{};               // count_drops
};

enum FeatureBits : std::uint32_t {
  cgroup_v2 = 1,
  limits_memory = 2,
  limits_cpu = 4,
  limits_pids = 8,
  limits_io = 16,
  kvm_device = 32,
  firecracker_found = 64,  // a binary that may be run; no proof that it runs
};

static_assert(std::is_trivially_copyable_v<Request> && std::is_trivially_copyable_v<Reply>);

}  // namespace hostd
