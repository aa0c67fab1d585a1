#include "controlplane/quarantine.hpp"

#include "base/log.hpp"

namespace controlplane {
namespace {

constexpr std::chrono::milliseconds look_every{1'000};
constexpr std::chrono::milliseconds store_patience{3'000};
constexpr std::chrono::milliseconds network_patience{30'000};
constexpr std::chrono::minutes remembered{20};  // longer than workers tell of one
constexpr std::size_t uuid_digits = 36;
constexpr std::int64_t micros_max = 7'000'000'000'000'000;  // the year 2191

}  // namespace

asio::awaitable<void> Quarantine::run() {
  for (;;) {
    co_await look();
    co_await async::sleep_for(look_every);
  }
}

asio::awaitable<void> Quarantine::look() {
  std::vector<wire::Reflected> fresh;
  for (auto const& [name, seen] : nodes_.all())
    for (auto const& one : seen.report.reflected)
      if (!done_.contains({one.credential, one.at_us})) fresh.push_back(one);
  for (auto& one : fresh)
    co_await take_in(std::move(one));
  auto const before = base::system_clock().steady_now() - remembered;
  std::erase_if(done_, [&](auto const& one) { return one.second < before; });
}

asio::awaitable<void> Quarantine::take_in(wire::Reflected reflected) {
  bool const sane = reflected.credential.size() == uuid_digits && reflected.at_us > 0 &&
                    reflected.at_us < micros_max;
  if (!sane) co_return;
  auto const stored = co_await store_.credentials.quarantine(
      reflected.credential,
      reflected.version,
      reflected.sandbox,
      reflected.host,
      base::WallTime(std::chrono::microseconds(reflected.at_us)),
      base::system_clock().in(store_patience));
  if (!stored) {
    base::log::warn("quarantine_not_stored",
                    {{"credential", reflected.credential}, {"why", stored.error().message()}});
    co_return;  // the next look tries again
  }
  done_.emplace(std::pair(reflected.credential, reflected.at_us),
                base::system_clock().steady_now());
  if (!*stored) co_return;
  auto const& row = **stored;
  base::log::warn(
      "credential_quarantined",
      {{"credential", row.name}, {"sandbox", reflected.sandbox}, {"host", reflected.host}});
  bool const wide = row.project_public_id.empty();
  auto const applied =
      co_await network_.enforce_under(wide ? "organisation" : "project",
                                      wide ? row.organisation_public_id : row.project_public_id,
                                      base::system_clock().in(network_patience),
                                      row.name);
  if (!applied)  // leases end within minutes, and are not renewed
    base::log::warn("quarantine_not_in_force",
                    {{"credential", row.name}, {"why", applied.error().message()}});
}

}  // namespace controlplane
