#include "controlplane/quarantine.hpp"

#include "base/id.hpp"
#include "base/log.hpp"

namespace controlplane {
namespace {

constexpr std::chrono::milliseconds look_every{1'000};
constexpr std::chrono::milliseconds store_patience{3'000};
constexpr std::chrono::milliseconds network_patience{30'000};
constexpr std::chrono::minutes remembered{20};  // longer than workers tell of one
constexpr std::chrono::milliseconds worker_patience{1'000};
constexpr std::chrono::seconds try_again_after{30};
constexpr std::size_t uuid_digits = 36;
constexpr std::size_t host_bytes_max = 253;
constexpr std::uint32_t version_max = INT32_MAX;
constexpr std::int64_t micros_max = 7'000'000'000'000'000;  // the year 2191

bool is_uuid(std::string_view text) noexcept {
  if (text.size() != uuid_digits) return false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    bool const dash = i == 8 || i == 13 || i == 18 || i == 23;
    bool const digit = (text[i] >= '0' && text[i] <= '9') || (text[i] >= 'a' && text[i] <= 'f');
    if (dash ? text[i] != '-' : !digit) return false;
  }
  return true;
}

}  // namespace

bool is_sane(wire::Reflected const& reflected) noexcept {
  auto const is_plain = [](char c) { return c > ' ' && c < 127; };
  return is_uuid(reflected.credential) && reflected.version > 0 &&
         reflected.version <= version_max && reflected.at_us > 0 && reflected.at_us < micros_max &&
         base::SandboxId::parse(reflected.sandbox).has_value() &&
         reflected.host.size() <= host_bytes_max && std::ranges::all_of(reflected.host, is_plain);
}

asio::awaitable<void> Quarantine::run() {
  for (;;) {
    co_await look();
    co_await async::sleep_for(look_every);
  }
}

asio::awaitable<void> Quarantine::look() {
  std::vector<Told> all;
  for (auto const& [name, seen] : nodes_.all())
    for (auto const& one : seen.report.reflected)
      if (is_sane(one)) all.push_back({seen.row.address, one});
  for (auto& told : all) {
    Key const key{told.reflected.credential, told.reflected.at_us};
    if (!done_.contains(key)) co_await take_in(told.reflected);
    if (!done_.contains(key)) continue;
    auto const heard = co_await workers_.reflection_taken(std::move(told.address),
                                                          std::move(told.reflected),
                                                          base::system_clock().in(worker_patience));
    static_cast<void>(heard);  // it tells of it again, and hears it then
  }
  auto const now = base::system_clock().steady_now();
  std::erase_if(done_, [&](auto const& one) { return one.second < now - remembered; });
  std::erase_if(again_at_, [&](auto const& one) { return one.second < now - remembered; });
}

asio::awaitable<void> Quarantine::take_in(wire::Reflected reflected) {
  Key const key{reflected.credential, reflected.at_us};
  auto const now = base::system_clock().steady_now();
  auto const later = again_at_.find(key);
  if (later != again_at_.end() && now < later->second) co_return;
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
  if (*stored) {
    base::log::warn("credential_quarantined",
                    {{"credential", (*stored)->name},
                     {"sandbox", reflected.sandbox},
                     {"host", reflected.host}});
    bool const everywhere = co_await bring(std::move(**stored));
    if (!everywhere) {
      again_at_[key] = base::system_clock().steady_now() + try_again_after;
      co_return;
    }
  }
  again_at_.erase(key);
  done_.emplace(key, base::system_clock().steady_now());
}

/// To every sandbox that names it; false while one of them has it still.
asio::awaitable<bool> Quarantine::bring(store::CredentialRow row) {
  bool const wide = row.project_public_id.empty();
  auto const applied =
      co_await network_.enforce_under(wide ? "organisation" : "project",
                                      wide ? row.organisation_public_id : row.project_public_id,
                                      base::system_clock().in(network_patience),
                                      row.name);
  bool const everywhere = applied && std::ranges::none_of(*applied, &Enforced::failed);
  if (!everywhere)  // its leases there end within minutes
    base::log::warn("quarantine_not_in_force",
                    {{"credential", row.name},
                     {"why", applied ? "a sandbox did not take it" : applied.error().message()}});
  co_return everywhere;
}

}  // namespace controlplane
