#include "domain/quota.hpp"

#include <limits>
#include <string_view>

namespace domain {
namespace {

std::uint64_t sum(std::uint64_t a, std::uint64_t b) noexcept {
  constexpr auto most = std::numeric_limits<std::uint64_t>::max();
  return a > most - b ? most : a + b;
}

std::uint64_t difference(std::uint64_t a, std::uint64_t b) noexcept {
  return a > b ? a - b : 0;
}

struct Row {
  std::optional<std::uint64_t> limit;
  std::uint64_t used;
  std::uint64_t wanted;
  std::string_view unit;
};

}  // namespace

base::Result<void> check_quota(Limits const& limits, Amounts const& used, Amounts const& wanted) {
  for (auto const& row :
       {Row{limits.sandboxes, used.sandboxes, wanted.sandboxes, "sandboxes"},
        Row{limits.vcpus, used.vcpus, wanted.vcpus, "vCPUs"},
        Row{limits.memory_mib, used.memory_mib, wanted.memory_mib, "MiB of memory"},
        Row{limits.disk_mib, used.disk_mib, wanted.disk_mib, "MiB of disk"}}) {
    if (!row.limit || row.wanted == 0 || sum(row.used, row.wanted) <= *row.limit) continue;
    return base::fail(base::Code::exhausted,
                      fmt::format("the project uses {} of {} {} and {} more were asked for; delete "
                                  "sandboxes or raise the project's quota",
                                  row.used,
                                  *row.limit,
                                  row.unit,
                                  row.wanted));
  }
  return {};
}

Amounts minus(Amounts const& a, Amounts const& b) noexcept {
  return {difference(a.sandboxes, b.sandboxes),
          difference(a.vcpus, b.vcpus),
          difference(a.memory_mib, b.memory_mib),
          difference(a.disk_mib, b.disk_mib)};
}

Amounts plus(Amounts const& a, Amounts const& b) noexcept {
  return {sum(a.sandboxes, b.sandboxes),
          sum(a.vcpus, b.vcpus),
          sum(a.memory_mib, b.memory_mib),
          sum(a.disk_mib, b.disk_mib)};
}

}  // namespace domain
