#include "vmm/qemu_command.hpp"

#include <fmt/format.h>

namespace vmm {
namespace {

std::string disk_option(QemuSpec const& spec) {
  // The set holds the one descriptor, so there is no path to open and none to exchange.
  std::string drive =
      "if=none,id=d0,file=/dev/fdset/"
      "1,format=raw,auto-read-only=off,cache=writeback,aio=threads,discard=unmap";
  if (spec.disk_bytes_per_s_max > 0)
    drive += fmt::format(",throttling.bps-total={}", spec.disk_bytes_per_s_max);
  if (spec.disk_ops_per_s_max > 0)
    drive += fmt::format(",throttling.iops-total={}", spec.disk_ops_per_s_max);
  return drive;
}

std::string memory_option(QemuSpec const& spec) {
  if (spec.memory == QemuMemory::own)
    return fmt::format("memory-backend-ram,id=m,size={}M", spec.memory_mib);
  return fmt::format("memory-backend-file,id=m,size={}M,mem-path={},share={}",
                     spec.memory_mib,
                     qemu_memory,
                     spec.memory == QemuMemory::recorded ? "on" : "off");
}

}  // namespace

std::string guest_kernel_arguments(QemuSpec const& spec) {
  std::string arguments = "console=ttyS0 quiet reboot=t panic=-1 random.trust_cpu=on";
  // Without these two a guest on a busy host hangs for ever in its timer calibration.
  arguments += " no_timer_check";
  if (spec.tsc_khz > 0) arguments += fmt::format(" tsc_early_khz={}", spec.tsc_khz);
  // An emulator loses timer ticks whenever the host is busy, and by counting them the guest would
  // find its perfectly good time-stamp counter wrong: it then runs on a clock of 4 ms steps, and
  // every timer is late.
  if (!spec.kvm) arguments += " tsc=reliable";
  // Speculation of the host's processor is not what emulated code runs on: mitigations cost there
  // and protect nothing.
  if (!spec.kvm) arguments += " mitigations=off";
  return arguments;
}

std::vector<std::string> qemu_command(QemuSpec const& spec) {
  std::vector<std::string> argv{qemu_binary};
  auto const add = [&](std::string option, std::string value) {
    argv.push_back(std::move(option));
    argv.push_back(std::move(value));
  };

  // ACPI, because the guest's kernel finds its devices by nothing else; a clock, so that it knows
  // the time.
  add("-M", "microvm,acpi=on,rtc=on,memory-backend=m");
  if (spec.kvm) {
    // Some hosts offer a value of this register that KVM then refuses to set.
    add("-accel", "kvm");
    add("-cpu", "host,-arch-capabilities");
  } else {
    add("-accel", fmt::format("tcg,thread=multi,tb-size={}", spec.tb_size_mib));
    add("-cpu", "max");
  }
  add("-smp", fmt::format("cpus={0},maxcpus={0}", spec.vcpus));
  add("-m", fmt::format("{}", spec.memory_mib));
  // Beside this and the last option the machine is the same however it starts: device states fit.
  add("-object", memory_option(spec));

  argv.insert(argv.end(), {"-nodefaults", "-no-user-config", "-no-reboot"});
  add("-display", "none");
  add("-kernel", qemu_kernel);
  add("-initrd", qemu_initrd);
  add("-append", guest_kernel_arguments(spec));

  add("-add-fd", fmt::format("fd={},set=1", spec.disk_fd));
  add("-drive", disk_option(spec));
  // A full pool stops the writer until there is room; it must not see errors that corrupt its file
  // system.
  add("-device", "virtio-blk-device,drive=d0,werror=stop,rerror=report");
  add("-netdev", fmt::format("tap,id=n0,fd={}", spec.tap_fd));
  add("-device", "virtio-net-device,netdev=n0,mac=02:00:00:00:00:02");
  add("-object", "rng-builtin,id=r0");
  add("-device", "virtio-rng-device,rng=r0");

  // Listening sockets that wait for nobody: a restarted worker connects again.
  add("-chardev", fmt::format("socket,id=q0,fd={},server=on,wait=off", spec.qmp_fd));
  add("-mon", "chardev=q0,mode=control");
  add("-chardev", fmt::format("socket,id=s0,fd={},server=on,wait=off", spec.console_fd));
  add("-serial", "chardev:s0");
  // On top of the jail's own filter. The list is installed when everything is open.
  add("-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny");
  if (spec.memory == QemuMemory::restored) add("-incoming", "defer");
  return argv;
}

}  // namespace vmm
