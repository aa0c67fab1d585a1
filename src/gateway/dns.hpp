#pragma once

#include "base/clock.hpp"
#include "base/result.hpp"
#include "domain/host_name.hpp"

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

/// The DNS front of one sandbox. It answers every query itself, on the spot, and asks nobody: a
/// name that policy could allow gets a synthetic address that is good for this name alone,
/// everything else does not exist. So a query can carry no data anywhere, and the address a guest
/// connects to *is* the name it asked for.
namespace gateway {

/// 198.18.0.0/15, the benchmarking block: not routed anywhere.
struct SyntheticRange {
  std::uint32_t first = 0xc6120001;
  std::uint32_t count = (1U << 17) - 2;
};

/// Names of one sandbox and their addresses, both ways. Part of the sandbox's record: a snapshot
/// keeps it.
class SyntheticNames {
 public:
  explicit SyntheticNames(std::uint32_t names_max, SyntheticRange range = {})
      : range_(range), names_max_(names_max) {}

  /// The address of `name`, made when there is none. `exhausted` when the sandbox has its limit of
  /// names: an address is never given to a second name while the sandbox lives, because the guest
  /// may have it cached.
  base::Result<std::uint32_t> address_of(domain::HostName const& name);
  std::optional<domain::HostName> name_of(std::uint32_t address) const;

  bool covers(std::uint32_t address) const noexcept {
    return address >= range_.first && address - range_.first < range_.count;
  }

  std::size_t size() const noexcept { return by_name_.size(); }

  std::map<domain::HostName, std::uint32_t> const& all() const noexcept { return by_name_; }

  /// Takes over a pair of an earlier life. Ignored outside the range or when one of the two is
  /// known already.
  void restore(domain::HostName const& name, std::uint32_t address);

  void set_limit(std::uint32_t names_max) noexcept { names_max_ = names_max; }

 private:
  SyntheticRange range_;
  std::uint32_t names_max_;
  std::uint32_t next_ = 0;
  std::map<domain::HostName, std::uint32_t> by_name_;
  std::map<std::uint32_t, domain::HostName> by_address_;
};

enum class DnsVerdict : std::uint8_t { answered, no_data, denied, malformed, ignored, limited };

struct DnsAnswer {
  DnsVerdict verdict = DnsVerdict::ignored;
  std::string message;  // to send back; "" = send nothing
  std::optional<std::pair<domain::HostName, std::uint32_t>>
      made;          // an address that was not there before
  std::string name;  // for the audit: at most 80 bytes, only [a-z0-9._-]; "" when it was no name
};

/// Decides and answers one query. `allows` says whether policy could allow a name. `message` is a
/// datagram, or one message of a TCP stream (without its length); over 512 bytes is malformed.
DnsAnswer answer_query(std::string_view message,
                       SyntheticNames& names,
                       std::function<bool(domain::HostName const&)> const& allows);

}  // namespace gateway
