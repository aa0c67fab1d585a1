#pragma once

#include "base/clock.hpp"
#include "broker/key_provider.hpp"
#include "broker/ledger.hpp"
#include "wire/credential.hpp"

#include <map>

namespace broker {

/// Opens sealed credentials for minutes at a time and gives one request's header out, after
/// checking the request itself. No I/O: the sockets around it are in service.cpp.
class Vault {
 public:
  Vault(KeyProvider const& keys, base::Clock const& clock)
      : keys_(keys), clock_(clock), ledger_(clock) {}

  /// Seals a value under a fresh data key; id, version and binding are bound to the ciphertext, so
  /// that rows cannot be swapped and a binding cannot be widened afterwards.
  base::Result<wire::Sealed> seal(wire::Seal const& request) const;

  /// From now on the gateway with that user id may use the credential. Replaces an earlier lease of
  /// the same name.
  base::Result<void> lease(wire::Lease const& request);
  void end_leases(std::string_view sandbox, std::string_view name = {});
  /// A new gateway begins with none: user ids come back, and what was leased to the sandbox that
  /// had this one before must not be found by its successor, whatever became of that worker.
  void end_leases_of(std::uint32_t gateway_uid);

  /// The header for one request of the gateway with user id `uid`, or why not. Never says whether a
  /// credential exists that this gateway has no lease for.
  /// `held`: what is to be given back (release()) when that request is over.
  wire::Used use(std::uint32_t uid,
                 wire::Use const& request,
                 std::vector<std::string>* held = nullptr);
  void release(std::vector<std::string> const& held);

  Ledger& ledger() noexcept { return ledger_; }

  std::size_t leases() const noexcept { return leases_.size(); }

 private:
  struct Entry {
    std::string sandbox;
    std::string id;
    std::uint32_t version = 0;
    wire::CredentialBinding binding;
    base::Secret value;
    base::Deadline not_after;
    std::optional<wire::SharedBudget> budget;  // it is one, and has no value
  };

  base::Result<Entry> open(wire::Lease const& request) const;
  void drop_expired();
  wire::Used use_budgets(std::uint32_t uid,
                         wire::Use const& request,
                         std::vector<std::string>* held);

  KeyProvider const& keys_;
  base::Clock const& clock_;
  std::map<std::pair<std::uint32_t, std::string>, Entry> leases_;  // by gateway user id and name
  base::Deadline first_ends_ = base::Deadline::max();              // no lease ends before
  Ledger ledger_;
};

}  // namespace broker
