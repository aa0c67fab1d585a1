#include "domain/placement.hpp"

#include <algorithm>

namespace domain {
namespace {

constexpr std::size_t sample_size = 3;

double free_share(std::uint64_t total, std::uint64_t used) noexcept {
  if (total == 0) return 0;
  return used >= total ? 0 : static_cast<double>(total - used) / static_cast<double>(total);
}

bool fits(Amounts const& total, Amounts const& used, Amounts const& wanted) noexcept {
  auto const sum = plus(used, wanted);
  return sum.sandboxes <= total.sandboxes && sum.vcpus <= total.vcpus &&
         sum.memory_mib <= total.memory_mib && sum.disk_mib <= total.disk_mib;
}

base::Error explain(Refusals const& why, std::string const& build) {
  using base::Code;
  if (why.full > 0) {
    return {Code::exhausted, "all workers are full; delete sandboxes, wait, or add a worker"};
  }
  if (why.without_build > 0) {
    return {Code::unavailable, "no worker that is ready has the image of this template", build};
  }
  if (why.without_boundary > 0) {
    return {Code::unavailable, "no worker that is ready runs machines with hardware isolation"};
  }
  if (why.draining > 0)
    return {Code::unavailable,
            "all workers are being drained; `space node drain NODE --off` ends that"};
  return {Code::unavailable, "no worker is ready; is space-worker running?"};
}

}  // namespace

Placement::Reservation::Reservation(Reservation&& from) noexcept
    : owner_(std::exchange(from.owner_, nullptr)),
      worker_(std::move(from.worker_)),
      amounts_(from.amounts_) {}

Placement::Reservation& Placement::Reservation::operator=(Reservation&& from) noexcept {
  std::swap(owner_, from.owner_);  // `from` takes our old reservation away and releases it
  std::swap(worker_, from.worker_);
  std::swap(amounts_, from.amounts_);
  return *this;
}

Placement::Reservation::~Reservation() {
  if (owner_) owner_->release(worker_, amounts_);
}

void Placement::Reservation::settle() noexcept {
  if (!owner_) return;
  auto const found = owner_->workers_.find(worker_);
  if (found != owner_->workers_.end()) {
    found->second.settled = plus(found->second.settled, amounts_);
  }
  std::exchange(owner_, nullptr)->release(worker_, amounts_);
}

void Placement::report(WorkerView view) {
  auto& worker = workers_[view.name];
  worker.view = std::move(view);
  worker.settled = {};
}

void Placement::forget(std::string const& worker) {
  workers_.erase(worker);
}

base::Result<Placement::Reservation> Placement::choose(PlacementRequest const& request,
                                                       std::vector<std::string> const& except) {
  Refusals why;
  std::vector<Worker*> candidates;
  for (auto& [name, worker] : workers_) {
    auto const& view = worker.view;
    if (!request.worker.empty() && name != request.worker) {
      ++why.elsewhere;
    } else if (!view.ready) {
      ++why.not_ready;
    } else if (view.draining) {
      ++why.draining;
    } else if (std::ranges::find(view.builds, request.build) == view.builds.end()) {
      ++why.without_build;
    } else if (request.boundary_required && !view.boundary) {
      ++why.without_boundary;
    } else if (std::ranges::find(except, name) != except.end() ||
               !fits(view.total, plus(view.used, pending(name)), request.wanted)) {
      ++why.full;
    } else {
      candidates.push_back(&worker);
    }
  }
  if (candidates.empty()) return std::unexpected(explain(why, request.build));

  // A random few instead of all: two API processes with the same view must not make the same
  // choice.
  auto const sampled = std::min(sample_size, candidates.size());
  for (std::size_t taken = 0; taken < sampled; ++taken) {
    auto const left = static_cast<std::uint32_t>(candidates.size() - taken);
    std::swap(candidates[taken], candidates[taken + random_(left)]);
  }
  candidates.resize(sampled);
  auto const scored = [this](Worker const* worker) { return score(*worker); };
  auto& best = **std::ranges::max_element(candidates, {}, scored);
  best.in_flight = plus(best.in_flight, request.wanted);
  return Reservation(*this, best.view.name, request.wanted);
}

Amounts Placement::pending(std::string const& worker) const {
  auto const found = workers_.find(worker);
  return found == workers_.end() ? Amounts{} : plus(found->second.in_flight, found->second.settled);
}

double Placement::score(Worker const& worker) const noexcept {
  auto const used = plus(worker.view.used, plus(worker.in_flight, worker.settled));
  auto const& total = worker.view.total;
  // The scarcest thing decides, memory counts most; each create on its way costs a start's CPU.
  double const scarcest = std::min({free_share(total.memory_mib, used.memory_mib),
                                    free_share(total.disk_mib, used.disk_mib),
                                    free_share(total.vcpus, used.vcpus),
                                    free_share(total.sandboxes, used.sandboxes)});
  return scarcest + 0.5 * free_share(total.memory_mib, used.memory_mib) -
         0.02 * static_cast<double>(std::min<std::uint64_t>(worker.in_flight.sandboxes, 100));
}

void Placement::release(std::string const& worker, Amounts const& amounts) noexcept {
  auto const found = workers_.find(worker);
  if (found != workers_.end()) found->second.in_flight = minus(found->second.in_flight, amounts);
}

}  // namespace domain
