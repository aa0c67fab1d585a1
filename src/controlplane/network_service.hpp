#pragma once

#include "async/task.hpp"
#include "controlplane/worker_client.hpp"
#include "store/store.hpp"

#include <set>

/// What sandboxes may reach: the stored levels put together, credentials leased, and both brought
/// into force on machines that run. Without an uplink everything is stored and nothing goes out.
namespace controlplane {

/// Whose network.
struct NetworkOf {
  std::string project_id;
  std::string project_public_id;
  std::string template_public_id;
  std::string sandbox;
  /// What it will have brought along after the next change, in the place of what is stored.
  std::optional<std::vector<store::SandboxCredential>> brought = std::nullopt;
};

NetworkOf network_of(store::SandboxRow const& row);

/// What a gateway is to be given, and what is to be said about it.
struct NetworkPlan {
  /// Outermost level first. Never empty: without a text of project, template or sandbox there is
  /// one that blocks everything, because platform and organisation only limit.
  wire::EffectivePolicy policy;
  std::vector<wire::Lease> credentials;  // and, as leases of their own, the levels' shared budgets
  std::vector<store::PolicyRow> levels;  // as stored; those that were taken away included

  /// A credential that a rule names and that will not be injected, or only in part.
  struct Trouble {
    std::string level;
    std::string rule;
    std::string sentence;
  };

  std::vector<Trouble> troubles;
};

/// What came of bringing a change into force on one sandbox.
struct Enforced {
  std::string sandbox;
  bool in_force = false;
  std::uint64_t generation = 0;
  std::uint32_t connections = 0;  // live ones that were judged again
  std::uint32_t cut = 0;
  std::string note;     // why it is not in force
  bool failed = false;  // it should be, and is not
};

class NetworkService {
 public:
  struct Options {
    bool has_uplink = false;
    std::chrono::milliseconds per_sandbox{8'000};  // a worker's whole answer
    std::chrono::milliseconds together{30'000};    // all sandboxes of a level
    std::size_t at_a_time = 16;
  };

  NetworkService(asio::any_io_executor executor,
                 store::Store& store,
                 WorkerClient& workers,
                 Options options);
  ~NetworkService();

  bool has_uplink() const noexcept { return options_.has_uplink; }

  /// What is stored, put together; with `own` in the place of the sandbox's stored text, as it
  /// would be after the next change. invalid_argument when it cannot be enforced as written.
  async::Task<NetworkPlan> plan(NetworkOf of,
                                std::optional<wire::Policy> own,
                                base::Deadline deadline);
  /// plan() for a sandbox that is about to be made or changed: also refuses rules of `own` whose
  /// credential it may not use.
  async::Task<NetworkPlan> check_own(NetworkOf of, wire::Policy own, base::Deadline deadline);

  /// Brings what is stored into force. Goes on although the caller leaves; what was not done in
  /// time says so.
  /// `credential`: only where a rule names it.
  async::Task<std::vector<Enforced>> enforce(std::vector<store::SandboxRow> rows,
                                             std::string credential = {});
  async::Task<std::vector<Enforced>> enforce_under(std::string level,
                                                   std::string subject,
                                                   base::Deadline deadline,
                                                   std::string credential = {});
  /// For the end of a start: what changed while the machine was being made. Nothing when nothing
  /// did.
  async::Task<void> catch_up(store::SandboxRow row,
                             std::uint64_t generation,
                             std::vector<wire::Lease> credentials);

  /// What the process before this one may not have been done with. One of the API's background
  /// loops; ends by itself.
  asio::awaitable<void> finish_recent();

  /// Cancels what runs and waits. Before destruction.
  asio::awaitable<void> close();

 private:
  struct FanOut;
  async::Task<void> add_credentials(NetworkPlan* plan,
                                    NetworkOf const* of,
                                    base::Deadline deadline);
  async::Task<std::vector<store::SandboxCredential>> brought_along(
      NetworkOf const* of, std::set<std::string> const* names, base::Deadline deadline);
  asio::awaitable<void> run(std::shared_ptr<FanOut> work);
  async::Task<wire::GatewayApplied> apply_current(store::SandboxRow row, base::Deadline deadline);
  /// Nothing when no rule names the credential, or it is over.
  async::Task<std::optional<Enforced>> enforce_one(store::SandboxRow row, std::string credential);

  asio::any_io_executor executor_;
  store::Store& store_;
  WorkerClient& workers_;
  Options options_;
  async::TaskGroup work_;  // last: its children use the members above
};

/// May this sandbox use it? "" or why not.
std::string why_not_granted(store::CredentialRow const& credential,
                            std::string_view project_public_id,
                            std::string_view sandbox);

inline constexpr std::string_view offline_note =
    "this installation has no uplink, so nothing goes out, whatever the policy says (space up "
    "--uplink)";

}  // namespace controlplane
