#pragma once

#include "base/clock.hpp"
#include "base/result.hpp"
#include "domain/quota.hpp"

#include <functional>
#include <map>
#include <string>
#include <vector>

/// Which worker gets a new sandbox. A pure rule over what workers reported, with the creates that
/// are on their way counted in: reports lag by a second, and without that every API process would
/// send a burst to the one worker that looked emptiest.
namespace domain {

/// What a worker reported. The worker itself admits or refuses; this only chooses whom to ask.
struct WorkerView {
  std::string name;
  bool ready = true;  // reports are fresh
  bool draining = false;
  bool boundary = false;  // may hostile code run there?
  Amounts total;          // `sandboxes` counts slots
  Amounts used;
  std::vector<std::string> builds;  // sorted; template builds whose images are there
};

struct PlacementRequest {
  std::string build;
  Amounts wanted;
  bool boundary_required = false;
  std::string worker;  // only this one will do, since what is to be started lies there; "" any
};

/// How many workers failed which condition, for the message.
struct Refusals {
  int not_ready = 0;
  int draining = 0;
  int without_build = 0;
  int without_boundary = 0;
  int elsewhere = 0;
  int full = 0;
};

/// One loop's view of all workers.
class Placement {
 public:
  /// A number in [0, bound); tests give a fixed one.
  using Random = std::function<std::uint32_t(std::uint32_t bound)>;

  explicit Placement(Random random) : random_(std::move(random)) {}

  /// A create that is on its way. Until it is destroyed, or until a report was taken after
  /// `settle()`, its amounts count as used. Movable; must not outlive the Placement.
  class [[nodiscard]] Reservation {
   public:
    Reservation(Reservation&& from) noexcept;
    Reservation& operator=(Reservation&& from) noexcept;
    Reservation(Reservation const&) = delete;
    Reservation& operator=(Reservation const&) = delete;
    ~Reservation();

    std::string const& worker() const noexcept { return worker_; }

    /// The worker said yes: its next report includes this sandbox.
    void settle() noexcept;

   private:
    friend class Placement;

    Reservation(Placement& owner, std::string worker, Amounts amounts)
        : owner_(&owner), worker_(std::move(worker)), amounts_(amounts) {}

    Placement* owner_;
    std::string worker_;
    Amounts amounts_;
  };

  /// Replaces what is known of that worker; settled reservations on it are forgotten.
  void report(WorkerView view);
  void forget(std::string const& worker);

  /// Filters, samples three of what is left, takes the best score, reserves. `except` are workers
  /// that have refused this request already. Errors: `exhausted` when the fitting workers are full,
  /// `unavailable` when none is ready; the message says what is in the way.
  base::Result<Reservation> choose(PlacementRequest const& request,
                                   std::vector<std::string> const& except = {});

  std::size_t workers() const noexcept { return workers_.size(); }

  /// Amounts on their way to that worker.
  Amounts pending(std::string const& worker) const;

 private:
  struct Worker {
    WorkerView view;
    Amounts in_flight;
    Amounts settled;
  };

  double score(Worker const& worker) const noexcept;
  void release(std::string const& worker, Amounts const& amounts) noexcept;

  Random random_;
  std::map<std::string, Worker> workers_;
};

}  // namespace domain
