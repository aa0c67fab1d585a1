#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <boost/json/object.hpp>

/// What Firecracker is told, and where its parts lie in the jail's view (src/hostd/jail.cpp puts
/// them there). Paths are the same in every jail, because a snapshot's state names them.
namespace vmm::firecracker {

namespace json = boost::json;

inline constexpr char binary[] = "/firecracker";
inline constexpr char kernel[] = "/guest/vmlinux";
inline constexpr char initrd[] = "/guest/initrd.gz";
/// A small file system of the machine's own.
inline constexpr char machine_directory[] = "/machine";
inline constexpr char api_socket[] = "/machine/api.sock";
inline constexpr char log[] = "/machine/log";
inline constexpr char disk[] = "/machine/disk";
inline constexpr char memory[] = "/machine/memory";
inline constexpr char state[] = "/machine/state";
/// A device state is a few kilobytes to some hundred, as many processors as there may be.
inline constexpr std::uint64_t state_bytes_max = 4ULL << 20;

/// Numbers only, like vmm::QemuSpec.
struct Spec {
  std::uint32_t vcpus = 1;
  std::uint32_t memory_mib = 512;
  std::uint64_t disk_bytes_per_s_max = 0;  // 0 = unlimited
  std::uint64_t disk_ops_per_s_max = 0;
};

/// The argument vector, program name first.
std::vector<std::string> command();

/// One call of the API.
struct Step {
  std::string method;
  std::string path;
  json::object body;
};

/// Everything from a fresh process to a running guest, in order.
std::vector<Step> boot_steps(Spec const& spec);
/// From a fresh process to a stopped machine of a snapshot.
Step load_step();
Step snapshot_step();
Step pause_step();
Step resume_step();

/// What the guest's kernel is told.
std::string kernel_arguments();

}  // namespace vmm::firecracker
