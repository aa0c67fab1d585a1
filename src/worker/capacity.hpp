#pragma once

#include "base/result.hpp"

#include <cstdint>
#include <memory>
#include <utility>

namespace worker {

/// What sandboxes use of a host, in the units of the API.
struct Amounts {
  std::uint64_t memory_mib = 0;
  std::uint64_t vcpus = 0;
  std::uint64_t disk_mib = 0;
  std::uint64_t slots = 0;

  friend bool operator==(Amounts const&, Amounts const&) = default;
};

/// What was admitted, from reserve() until destruction. Must not outlive its Capacity.
class [[nodiscard]] Reservation;

/// How much of this host is promised to sandboxes. Memory and disk are counted at their limits, not
/// at their use: a promise that was made is kept. One thread.
///
/// Invariant: used() is the sum of all living reservations.
class Capacity {
 public:
  explicit Capacity(Amounts total) : total_(total) {}

  Capacity(Capacity const&) = delete;
  Capacity& operator=(Capacity const&) = delete;

  /// All or nothing. Fails with `exhausted` and a sentence that names what is missing, never waits:
  /// placement upstairs decides what a full host means.
  base::Result<Reservation> reserve(Amounts wanted);
  /// For what runs already when the worker starts: counts it even when it is over the total.
  Reservation adopt(Amounts held);

  Amounts const& total() const noexcept { return total_; }

  Amounts const& used() const noexcept { return used_; }

  /// The pool grew or shrank. What is promised stays promised.
  void set_disk_total(std::uint64_t mib) noexcept { total_.disk_mib = mib; }

 private:
  friend class Reservation;
  Amounts total_;
  Amounts used_;
};

class [[nodiscard]] Reservation {
 public:
  Reservation() = default;

  Reservation(Reservation&& from) noexcept
      : owner_(std::exchange(from.owner_, nullptr)), held_(from.held_) {}

  Reservation& operator=(Reservation&& from) noexcept {
    std::swap(owner_, from.owner_);  // `from` gives ours back
    std::swap(held_, from.held_);
    return *this;
  }

  ~Reservation();

  Amounts const& held() const noexcept { return held_; }

 private:
  friend class Capacity;

  Reservation(Capacity& owner, Amounts held) noexcept : owner_(&owner), held_(held) {}

  Capacity* owner_ = nullptr;
  Amounts held_;
};

}  // namespace worker
