#pragma once

#include "base/result.hpp"

#include <cstdint>
#include <optional>

/// What a project may hold at one time. Counted over its sandboxes that hold a machine or may soon.
namespace domain {

struct Amounts {
  std::uint64_t sandboxes = 0;
  std::uint64_t vcpus = 0;
  std::uint64_t memory_mib = 0;
  std::uint64_t disk_mib = 0;

  friend bool operator==(Amounts const&, Amounts const&) = default;
};

struct Limits {
  // Nothing means unlimited; 0 means none at all.
  std::optional<std::uint64_t> sandboxes;
  std::optional<std::uint64_t> vcpus;
  std::optional<std::uint64_t> memory_mib;
  std::optional<std::uint64_t> disk_mib;
  // Of snapshots; checked by the statement that makes one.
  std::optional<std::uint64_t> snapshots{};
  std::optional<std::uint64_t> snapshot_mib{};
};

/// `exhausted` with a sentence that names the first limit in the way and what would help. Never
/// wraps around, whatever the numbers are.
base::Result<void> check_quota(Limits const& limits, Amounts const& used, Amounts const& wanted);

/// `a - b`, clamped at zero: an allocation count that is out of step must not become 2^64.
Amounts minus(Amounts const& a, Amounts const& b) noexcept;
Amounts plus(Amounts const& a, Amounts const& b) noexcept;

}  // namespace domain
