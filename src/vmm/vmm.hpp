#pragma once

#include "async/task.hpp"
#include "os/fd.hpp"
#include "vmm/exit_cause.hpp"

#include <cstdint>
#include <memory>
#include <string>

/// A virtual machine and what runs it. A worker sees `Driver` (makes machines) and `Vmm` (one
/// machine); a driver sees `Launcher`, because only space-hostd may start and end processes.
///
/// Everything that a VMM process says (control socket, console, stderr) is hostile input: a guest
/// may have taken the process over. It is bounded, paced, and believed only about its own machine.
namespace vmm {

namespace asio = boost::asio;

enum class Accelerator : std::uint8_t { tcg, kvm };

/// "tcg", "kvm".
std::string_view name_of(Accelerator accelerator) noexcept;

/// The program that runs a machine. Firecracker needs KVM.
enum class Engine : std::uint8_t { qemu, firecracker };

/// "qemu", "firecracker".
std::string_view name_of(Engine engine) noexcept;

enum class MachineStart : std::uint8_t {
  boot,     // the kernel starts
  record,   // the same, with the guest's memory in a file: for a later capture()
  restore,  // on the memory file of a capture; does nothing until restore() has loaded its state
};

/// One machine to be started in a prepared slot. The guest's kernel and initramfs are the host's.
struct BootSpec {
  std::uint32_t slot = 0;
  std::string sandbox;  // base::SandboxId
  std::uint64_t epoch = 0;
  Accelerator accelerator = Accelerator::tcg;
  Engine engine = Engine::qemu;  // set by the driver
  std::uint32_t vcpus = 1;
  std::uint32_t memory_mib = 512;
  std::uint64_t tsc_khz = 0;
  os::Fd disk;  // the raw image, read-write
  MachineStart start = MachineStart::boot;
  /// record, restore: a regular file of exactly memory_mib. record: opened read-write. restore: any
  /// number of machines map it privately; it must not change while one of them lives.
  os::Fd memory;
  /// restore, if not empty: pages in which this machine's memory differs from that file
  /// (changed_pages.hpp). Proven to be ours by the caller: a broken one ends the VMM.
  os::Fd changes;
};

/// A running VMM process as the launcher hands it over.
struct Process {
  std::int32_t pid = 0;
  os::Fd pidfd;
  os::Fd control;  // the VMM's control socket
  os::Fd console;  // readable: what the guest writes to its console
  os::Fd errors;   // readable: the process's stderr; may be empty after an adoption
  /// Firecracker only: the regular file by which the state of devices goes in and out, because that
  /// VMM takes paths and no descriptors. Empty otherwise.
  os::Fd exchange;
};

/// Starts and ends VMM processes; the worker's client of space-hostd, or a fake.
class Launcher {
 public:
  virtual ~Launcher() = default;
  virtual async::Task<Process> start(BootSpec spec) = 0;
  /// What runs in that slot since before our own start; not_found when nothing does.
  virtual async::Task<Process> attach(std::uint32_t slot) = 0;
  /// Kills whatever is left in that slot's control group, reaps it and forgets it. Idempotent.
  virtual async::Task<ProcessEnd> end(std::uint32_t slot) = 0;
};

/// One machine, from boot() or adopt() until its process is gone. Its owner awaits close() before
/// it dies; the machine itself outlives this object unless kill() was called.
class Vmm {
 public:
  virtual ~Vmm() = default;
  virtual std::int32_t pid() const noexcept = 0;
  /// Stops the vCPUs; memory stays. Errors: unavailable, deadline_exceeded, internal (the VMM
  /// refused).
  virtual async::Task<void> pause(base::Deadline deadline) = 0;
  virtual async::Task<void> resume(base::Deadline deadline) = 0;
  /// Of a machine started to be recorded: stops it and writes the state of its devices (some 60 KB)
  /// to `state`, a regular file opened for writing; borrowed. Afterwards memory file, state and
  /// disk are one moment, as long as the machine stays stopped: copy the disk, then kill();
  /// resume() is possible, and spoils the memory file. After an error it is stopped as well, and
  /// the state is of no use. Errors: as pause().
  virtual async::Task<void> capture(os::FdRef state, base::Deadline deadline) = 0;
  /// Of a machine started to be restored, once: loads the state of a capture and lets the machine
  /// go on from there. `state` is borrowed and read from its beginning. After an error the machine
  /// is good for kill() only. Errors: as pause(); unavailable also for a state that does not fit.
  virtual async::Task<void> restore(os::FdRef state, base::Deadline deadline) = 0;
  /// Of a stopped machine, however it was started: the state of its devices (some 13 KB), for
  /// restore(). Memory is not in it: the caller keeps what has changed. Its disk is flushed; it
  /// stays stopped, and resume() is possible. Errors: as pause(), and internal from a driver that
  /// cannot.
  virtual async::Task<std::string> save_devices(base::Deadline deadline);
  /// At which address of the VMM's process its guest's memory begins. Its own word: good for
  /// reading this machine's memory and nothing else. Errors: as save_devices().
  virtual async::Task<std::uint64_t> memory_address(base::Deadline deadline);
  /// Do the vCPUs stand still? For a machine that was found again. Errors: as pause().
  virtual async::Task<bool> stopped(base::Deadline deadline);
  /// The VMM stopped the vCPUs because the disk's image could not be written (a full pool).
  /// resume() tries again.
  virtual bool stalled() const noexcept = 0;
  /// Waits until the process is gone, whoever ended it.
  virtual asio::awaitable<void> wait_gone() = 0;
  /// Ends the process if it still lives, releases it at the launcher, and says why it ended. Once
  /// it has succeeded it gives the same answer again. Fails when the launcher cannot be asked: try
  /// again.
  virtual async::Task<Exit> kill() = 0;
  /// The newest `bytes_max` bytes of the console, as they came (not valid UTF-8 by promise).
  virtual std::string console(std::size_t bytes_max) const = 0;
  /// Stops watching. Ends nothing.
  virtual asio::awaitable<void> close() = 0;
};

class Driver {
 public:
  virtual ~Driver() = default;
  /// Starts a machine and returns as soon as its process runs; that the guest is up is for its
  /// agent to say. All or nothing, except that a cancelled call may leave a process in the slot,
  /// which the owner of the slot ends with Launcher::end (it does so for every slot that it gives
  /// back).
  virtual async::Task<std::unique_ptr<Vmm>> boot(BootSpec spec) = 0;
  /// Takes over the machine that runs in `slot`, without the guest noticing.
  virtual async::Task<std::unique_ptr<Vmm>> adopt(std::uint32_t slot) = 0;
};

}  // namespace vmm
