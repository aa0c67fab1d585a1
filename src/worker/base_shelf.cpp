#include "worker/base_shelf.hpp"

namespace worker {

namespace {

constexpr int failures_max = 2;

}  // namespace

std::shared_ptr<BaseSnapshot const> BaseShelf::find(MachineShape const& shape) const {
  auto const found = places_.find(shape);
  return found == places_.end() ? nullptr : found->second.base;
}

bool BaseShelf::current(std::shared_ptr<BaseSnapshot const> const& base) const {
  return base && find(base->shape) == base;
}

void BaseShelf::put(std::shared_ptr<BaseSnapshot const> base) {
  auto const shape = base->shape;
  places_[shape] = Place{std::move(base), 0, {}};
}

void BaseShelf::refuse(MachineShape const& shape, std::string reason) {
  auto& place = places_[shape];
  place.base.reset();
  place.reason = std::move(reason);
}

void BaseShelf::forget(MachineShape const& shape) {
  places_.erase(shape);
}

std::vector<MachineShape> BaseShelf::shapes() const {
  std::vector<MachineShape> out;
  for (auto const& [shape, place] : places_) {
    if (place.base) out.push_back(shape);
  }
  return out;
}

bool BaseShelf::failed(BaseSnapshot const& base, bool surely, std::string reason) {
  auto const found = places_.find(base.shape);
  // Somebody else has already seen to it.
  if (found == places_.end() || found->second.base.get() != &base) return false;
  found->second.failures += surely ? failures_max : 1;
  if (found->second.failures < failures_max) return false;
  refuse(base.shape, std::move(reason));
  return true;
}

void BaseShelf::worked(BaseSnapshot const& base) {
  auto const found = places_.find(base.shape);
  if (found != places_.end()) found->second.failures = 0;
}

std::vector<wire::BaseSnapshotReport> BaseShelf::report() const {
  std::vector<wire::BaseSnapshotReport> out;
  for (auto const& [shape, place] : places_)
    out.push_back({shape.build, place.base != nullptr, place.reason});
  return out;
}

}  // namespace worker
