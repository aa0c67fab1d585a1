#include "vmm/qemu_command.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace vmm {
namespace {

std::string joined(std::vector<std::string> const& argv) {
  std::string line;
  for (auto const& word : argv)
    line += (line.empty() ? "" : " ") + word;
  return line;
}

QemuSpec example() {
  QemuSpec spec;
  spec.vcpus = 2;
  spec.memory_mib = 1024;
  spec.tb_size_mib = 96;
  spec.disk_bytes_per_s_max = 100'000'000;
  spec.disk_ops_per_s_max = 2000;
  spec.tsc_khz = 2'445'426;
  spec.disk_fd = 5;
  spec.tap_fd = 6;
  spec.qmp_fd = 7;
  spec.console_fd = 8;
  return spec;
}

TEST(QemuCommand, SoftwareEmulationIsExactlyThis) {
  EXPECT_EQ(
      joined(qemu_command(example())),
      "/usr/bin/qemu-system-x86_64 -M microvm,acpi=on,rtc=on,memory-backend=m"
      " -accel tcg,thread=multi,tb-size=96 -cpu max -smp cpus=2,maxcpus=2 -m 1024"
      " -object memory-backend-ram,id=m,size=1024M -nodefaults -no-user-config -no-reboot -display "
      "none"
      " -kernel /guest/vmlinux -initrd /guest/initrd.gz -append console=ttyS0 quiet reboot=t "
      "panic=-1"
      " random.trust_cpu=on no_timer_check tsc_early_khz=2445426 tsc=reliable mitigations=off "
      "-add-fd fd=5,set=1"
      " -drive "
      "if=none,id=d0,file=/dev/fdset/"
      "1,format=raw,auto-read-only=off,cache=writeback,aio=threads,discard=unmap,"
      "throttling.bps-total=100000000,throttling.iops-total=2000"
      " -device virtio-blk-device,drive=d0,werror=stop,rerror=report -netdev tap,id=n0,fd=6"
      " -device virtio-net-device,netdev=n0,mac=02:00:00:00:00:02 -object rng-builtin,id=r0"
      " -device virtio-rng-device,rng=r0 -chardev socket,id=q0,fd=7,server=on,wait=off"
      " -mon chardev=q0,mode=control -chardev socket,id=s0,fd=8,server=on,wait=off -serial "
      "chardev:s0"
      " -sandbox on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny");
}

TEST(QemuCommand, KvmHasNoTranslationCacheAndKeepsMitigations) {
  auto spec = example();
  spec.kvm = true;
  auto const line = joined(qemu_command(spec));
  EXPECT_THAT(line, testing::HasSubstr("-accel kvm -cpu host,-arch-capabilities"));
  EXPECT_THAT(line, testing::Not(testing::HasSubstr("tb-size")));
  EXPECT_THAT(line, testing::Not(testing::HasSubstr("mitigations=off")));
}

TEST(QemuCommand, WhatIsNotLimitedIsNotMentioned) {
  auto spec = example();
  spec.disk_bytes_per_s_max = 0;
  spec.disk_ops_per_s_max = 0;
  spec.tsc_khz = 0;
  auto const line = joined(qemu_command(spec));
  EXPECT_THAT(line, testing::Not(testing::HasSubstr("throttling")));
  EXPECT_THAT(line, testing::Not(testing::HasSubstr("tsc_early_khz")));
  EXPECT_THAT(line, testing::HasSubstr("no_timer_check"));
}

TEST(QemuCommand, MemoryInAFileIsAllThatMakesARecordedOrRestoredMachineDifferent) {
  auto spec = example();
  auto const booted = qemu_command(spec);
  spec.memory = QemuMemory::recorded;
  auto recorded = qemu_command(spec);
  spec.memory = QemuMemory::restored;
  auto restored = qemu_command(spec);
  EXPECT_THAT(
      joined(recorded),
      testing::HasSubstr("memory-backend-file,id=m,size=1024M,mem-path=/guest/memory,share=on"));
  EXPECT_THAT(
      joined(restored),
      testing::HasSubstr("memory-backend-file,id=m,size=1024M,mem-path=/guest/memory,share=off"));
  ASSERT_THAT(joined(restored), testing::EndsWith(" -incoming defer"));
  restored.resize(restored.size() - 2);
  for (auto* argv : {&recorded, &restored}) {
    ASSERT_EQ(argv->size(), booted.size());
    std::size_t different = 0;
    for (std::size_t i = 0; i < booted.size(); ++i)
      different += (*argv)[i] != booted[i] ? 1 : 0;
    EXPECT_EQ(different, 1U);
  }
}

}  // namespace
}  // namespace vmm
