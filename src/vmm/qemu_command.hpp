#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace vmm {

/// Where the guest's memory comes from.
enum class QemuMemory : std::uint8_t {
  own,       // the process's
  recorded,  // a file that gets what the guest writes: its machine is to be captured
  restored,  // a file whose content the guest finds and does not change; waits for a device state
};

/// Everything that makes one QEMU process differ from another. Numbers only: no name or path of a
/// tenant can reach a command line. The descriptors are open in the new process under these
/// numbers.
struct QemuSpec {
  bool kvm = false;
  QemuMemory memory = QemuMemory::own;
  std::uint32_t vcpus = 1;
  std::uint32_t memory_mib = 512;
  std::uint32_t tb_size_mib = 64;          // translation cache; software emulation only
  std::uint64_t disk_bytes_per_s_max = 0;  // 0 = unlimited
  std::uint64_t disk_ops_per_s_max = 0;
  std::uint64_t tsc_khz = 0;  // 0 = the guest measures
  int disk_fd = -1;
  int tap_fd = -1;
  int qmp_fd = -1;      // a listening Unix stream socket
  int console_fd = -1;  // the same
};

/// Where the parts lie in the jail's view (src/hostd/jail.cpp puts them there).
inline constexpr char qemu_binary[] = "/usr/bin/qemu-system-x86_64";
inline constexpr char qemu_kernel[] = "/guest/vmlinux";
inline constexpr char qemu_initrd[] = "/guest/initrd.gz";
/// No file: opening it gives a copy of the descriptor (src/hostd/preload/guest_memory.cpp).
inline constexpr char qemu_memory[] = "/guest/memory";
inline constexpr int qemu_memory_fd = 9;
/// Pages that differ from that memory (changed_pages.hpp), under this number when the variable is
/// set; the jail's library copies them over the mapping.
inline constexpr int qemu_changes_fd = 10;
inline constexpr char qemu_changes_name[] = "SPACE_CHANGED_PAGES";

/// Memory that a machine may use beside its guest's, in MiB: QEMU's own, the kernel's for it, some
/// page cache of its disk, and the emulator's translation cache. One rule for the worker's
/// reservation and for hostd's limit.
constexpr std::uint64_t overhead_mib(bool kvm, std::uint32_t tb_size_mib) noexcept {
  return 96 + (kvm ? 0 : std::uint64_t{tb_size_mib});
}

/// The argument vector, program name first. Ids are fixed because saved device states name them:
/// memory `m`, disk `d0`, network `n0`.
std::vector<std::string> qemu_command(QemuSpec const& spec);

/// What the guest's kernel is told.
std::string guest_kernel_arguments(QemuSpec const& spec);

}  // namespace vmm
