#include "vmm/firecracker_command.hpp"

namespace vmm::firecracker {
namespace {

// As hostd makes them (src/hostd/slot_network.cpp): the same in every slot.
constexpr char tap_name[] = "sbx0";
constexpr char guest_mac[] = "02:00:00:00:00:02";

/// A bucket that is filled within a second.
json::object bucket(std::uint64_t per_second) {
  return {{"size", per_second}, {"refill_time", 1000}};
}

json::object drive(Spec const& spec) {
  // No root device: that would add a root= of its own to what the kernel is told, and our initramfs
  // finds the disk itself. Writeback: a flush of the guest is a flush here.
  json::object drive{{"drive_id", "d0"},
                     {"path_on_host", disk},
                     {"is_root_device", false},
                     {"is_read_only", false},
                     {"cache_type", "Writeback"}};
  json::object limiter;
  if (spec.disk_bytes_per_s_max > 0) limiter["bandwidth"] = bucket(spec.disk_bytes_per_s_max);
  if (spec.disk_ops_per_s_max > 0) limiter["ops"] = bucket(spec.disk_ops_per_s_max);
  if (!limiter.empty()) drive["rate_limiter"] = std::move(limiter);
  return drive;
}

}  // namespace

std::string kernel_arguments() {
  // reboot=k: a reset by the keyboard controller is what ends the process.
  return "console=ttyS0 quiet reboot=k panic=-1 random.trust_cpu=on 8250.nr_uarts=1 i8042.noaux "
         "i8042.nomux i8042.dumbkbd";
}

std::vector<std::string> command() {
  // The console is the process's standard output; its own lines go elsewhere, so that nothing but
  // the guest is on it. No --enable-pci: devices are on MMIO.
  return {
      binary, "--id", "machine", "--api-sock", api_socket, "--log-path", log, "--level", "Warn"};
}

std::vector<Step> boot_steps(Spec const& spec) {
  return {
      {"PUT",
       "/machine-config",
       {{"vcpu_count", spec.vcpus}, {"mem_size_mib", spec.memory_mib}, {"smt", false}}},
      {"PUT",
       "/boot-source",
       {{"kernel_image_path", kernel}, {"initrd_path", initrd}, {"boot_args", kernel_arguments()}}},
      {"PUT", "/drives/d0", drive(spec)},
      {"PUT",
       "/network-interfaces/n0",
       {{"iface_id", "n0"}, {"host_dev_name", tap_name}, {"guest_mac", guest_mac}}},
      {"PUT", "/entropy", {}},
      {"PUT", "/actions", {{"action_type", "InstanceStart"}}}};
}

Step load_step() {
  // Stopped, and on the tap of this slot. The disk is at the path that the state names.
  return {"PUT",
          "/snapshot/load",
          {{"snapshot_path", state},
           {"mem_backend", json::object{{"backend_type", "File"}, {"backend_path", memory}}},
           {"resume_vm", false},
           {"network_overrides",
            json::array{json::object{{"iface_id", "n0"}, {"host_dev_name", tap_name}}}}}};
}

Step snapshot_step() {
  return {"PUT",
          "/snapshot/create",
          {{"snapshot_type", "Full"}, {"snapshot_path", state}, {"mem_file_path", memory}}};
}

Step pause_step() {
  return {"PATCH", "/vm", {{"state", "Paused"}}};
}

Step resume_step() {
  return {"PATCH", "/vm", {{"state", "Resumed"}}};
}

}  // namespace vmm::firecracker
