#include "worker/capacity.hpp"

namespace worker {
namespace {

std::unexpected<base::Error> lacking(std::string_view what,
                                     std::uint64_t total,
                                     std::uint64_t used,
                                     std::uint64_t wanted) {
  auto const left = total > used ? total - used : 0;
  return base::fail(
      base::Code::exhausted,
      fmt::format(
          "this host has {} {} left for sandboxes, and this one needs {}", left, what, wanted));
}

/// What is not wanted fits also where more is promised than there is: the pool may have shrunk.
bool fits(std::uint64_t total, std::uint64_t used, std::uint64_t wanted) {
  return wanted == 0 || (used <= total && wanted <= total - used);
}

}  // namespace

base::Result<Reservation> Capacity::reserve(Amounts wanted) {
  if (!fits(total_.slots, used_.slots, wanted.slots))
    return lacking("slots", total_.slots, used_.slots, wanted.slots);
  if (!fits(total_.vcpus, used_.vcpus, wanted.vcpus))
    return lacking("vCPUs", total_.vcpus, used_.vcpus, wanted.vcpus);
  if (!fits(total_.memory_mib, used_.memory_mib, wanted.memory_mib)) {
    return lacking("MiB of memory", total_.memory_mib, used_.memory_mib, wanted.memory_mib);
  }
  if (!fits(total_.disk_mib, used_.disk_mib, wanted.disk_mib)) {
    return lacking("MiB of disk", total_.disk_mib, used_.disk_mib, wanted.disk_mib);
  }
  return adopt(wanted);
}

Reservation Capacity::adopt(Amounts held) {
  used_.memory_mib += held.memory_mib;
  used_.vcpus += held.vcpus;
  used_.disk_mib += held.disk_mib;
  used_.slots += held.slots;
  return Reservation(*this, held);
}

Reservation::~Reservation() {
  if (!owner_) return;
  owner_->used_.memory_mib -= held_.memory_mib;
  owner_->used_.vcpus -= held_.vcpus;
  owner_->used_.disk_mib -= held_.disk_mib;
  owner_->used_.slots -= held_.slots;
}

}  // namespace worker
