#include "gateway/limits.hpp"

namespace gateway {
namespace {

constexpr std::size_t places_looked_at = 8;

bool within(std::uint64_t used, std::optional<std::uint64_t> const& most) {
  return !most || used <= *most;
}

}  // namespace

domain::Pace& HostPaces::of(std::string_view host, base::SteadyTime now) {
  auto const hash = std::hash<std::string_view>{}(host);
  Place* unused = nullptr;
  for (std::size_t i = 0; i < places_looked_at; ++i) {
    auto& place = places_[(hash + i) % places];
    if (place.hash == hash) return place.pace;
    if (!unused && place.pace.idle(now)) unused = &place;
  }
  if (!unused) return places_[(hash + places_looked_at - 1) % places].pace;
  *unused = {hash, {}};
  return unused->pace;
}

void Limits::apply(domain::EgressPolicy const& policy) {
  budgets_ = policy.budgets();
  handshakes_.set_rate(budgets_.handshakes_per_s);
  if (budgets_.host_requests_per_s && !hosts_) hosts_ = std::make_unique<HostPaces>();
  decltype(meters_) kept;
  by_rule_.clear();
  policy.for_each_limited([&](std::string const& level, wire::PolicyRule const& rule) {
    auto key = std::pair(level, rule.id);
    while (kept.contains(key))
      key.second += '\'';  // an id that is used twice
    auto& meter = kept[key];
    auto const old = meters_.find(key);
    meter = old != meters_.end() ? old->second : std::make_shared<RuleMeter>();
    meter->limits = *rule.limits;
    by_rule_[&rule] = meter;
  });
  // What is not limited any more is not limited for connections that go on either.
  for (auto const& [key, meter] : meters_)
    if (!kept.contains(key)) meter->limits = {};
  meters_ = std::move(kept);
}

void Limits::find_meters(domain::Decision const& decision, RuleMeters& into) const {
  into.clear();
  for (auto const* rule : decision.limited) {
    if (!rule) return;
    if (auto const found = by_rule_.find(rule); found != by_rule_.end())
      into.push_back(found->second);
  }
}

Limits::Admission Limits::admit_request(base::SteadyTime now,
                                        std::string_view host,
                                        RuleMeters const& meters) {
  Admission out;
  auto const ask = [&](domain::Pace const& pace, std::uint32_t per_s, std::string_view reason) {
    auto const wait = pace.wait(now, per_s);
    if (wait > patience && out.admitted) out = {false, {}, reason};
    out.wait = std::max(out.wait, wait);
  };
  auto* of_host = hosts_ && budgets_.host_requests_per_s ? &hosts_->of(host, now) : nullptr;
  ask(requests_, budgets_.requests_per_s, "request_budget");
  if (of_host) ask(*of_host, *budgets_.host_requests_per_s, "host_budget");
  for (auto const& meter : meters)
    if (meter->limits.requests_per_s)
      ask(meter->requests, *meter->limits.requests_per_s, "rule_budget");
  if (!out.admitted) return out;
  requests_.charge(now, budgets_.requests_per_s);
  if (of_host) of_host->charge(now, *budgets_.host_requests_per_s);
  for (auto const& meter : meters)
    if (meter->limits.requests_per_s) meter->requests.charge(now, *meter->limits.requests_per_s);
  return out;
}

bool Limits::admit_bytes(std::uint64_t up, std::uint64_t down, RuleMeters const& meters) {
  up_bytes_ += up;
  down_bytes_ += down;
  bool good = within(up_bytes_, budgets_.up_bytes) && within(down_bytes_, budgets_.down_bytes);
  for (auto const& meter : meters) {
    meter->up_bytes += up;
    meter->down_bytes += down;
    good = good && within(meter->up_bytes, meter->limits.up_bytes) &&
           within(meter->down_bytes, meter->limits.down_bytes);
  }
  return good;
}

}  // namespace gateway
