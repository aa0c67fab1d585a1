#pragma once

#include "controlplane/e2b_rules.hpp"
#include "controlplane/e2b_schema.hpp"
#include "controlplane/router.hpp"
#include "controlplane/sandbox_service.hpp"
#include "controlplane/sealer.hpp"

/// E2B's control API over the same service as the native routes: paths, status codes, bodies and
/// wording that the unmodified clients 2.21.1 and newer expect. What this version does not have
/// answers 501 with a sentence, after the usual "is it yours" check, never 404 by accident.
namespace controlplane::e2b {

class E2b {
 public:
  struct Options {
    std::string domain;  // what clients build sandbox host names with; may carry a port
    std::chrono::seconds timeout_max{std::chrono::hours(24 * 30)};
    /// How long a create is waited for: a cold boot in emulation takes its time.
    std::chrono::seconds create_wait{240};
    std::chrono::seconds delete_wait{30};
    std::chrono::seconds pause_wait{240};
  };

  E2b(SandboxService& service,
      store::Store& store,
      asio::any_io_executor executor,
      std::string broker_socket,
      Options options)
      : service_(service),
        store_(store),
        sealer_(std::move(executor), std::move(broker_socket)),
        options_(std::move(options)) {}

  /// The E2b must outlive the router.
  void add_routes(Router& router);

 private:
  // e2b_sandboxes.cpp
  void add_sandbox_routes(Router& router);
  async::Task<Reply> create(Call& call, std::int64_t default_timeout_s, bool always_secure);
  async::Task<Reply> list(Call& call, bool paged);
  async::Task<Reply> show(Call& call);
  async::Task<Reply> remove(Call& call);
  async::Task<Reply> set_timeout(Call& call);
  async::Task<Reply> refresh(Call& call);
  async::Task<Reply> connect(Call& call);

  // e2b_lives.cpp
  void add_lives_routes(Router& router);
  async::Task<Reply> pause(Call& call);
  async::Task<Reply> resume(Call& call);
  async::Task<Reply> take_snapshot(Call& call);
  async::Task<Reply> list_snapshots(Call& call);
  async::Task<Reply> remove_template(Call& call);
  async::Task<Reply> fork(Call& call);
  async::Task<Reply> awake(Call& call, std::string sandbox, std::uint32_t timeout_s);

  // e2b_observe.cpp
  void add_observe_routes(Router& router);
  async::Task<Reply> metrics(Call& call);
  async::Task<Reply> metrics_of_many(Call& call);
  async::Task<Reply> logs(Call& call);
  async::Task<Reply> logs_v2(Call& call);

  // e2b_templates.cpp
  void add_template_routes(Router& router);
  async::Task<Reply> list_templates(Call& call);
  async::Task<Reply> show_template(Call& call);
  async::Task<Reply> show_alias(Call& call);
  async::Task<Reply> list_tags(Call& call);
  async::Task<Reply> teams(Call& call);
  async::Task<std::optional<store::TemplateRow>> find_template(Call& call, std::string name);

  // e2b_egress.cpp
  void add_egress_routes(Router& router);
  async::Task<Reply> set_network(Call& call);
  async::Task<std::vector<store::SandboxCredential>> seal(std::vector<HeaderRule> rules,
                                                          base::Deadline deadline);

  // e2b_later.cpp
  void add_later_routes(Router& router);
  async::Task<Reply> template_later(Call& call, std::string message);

  /// The caller's sandbox as E2B clients may see it: not one that is not there yet or no more.
  async::Task<store::SandboxRow> visible(Call& call);
  Reply sandbox_answer(int status, store::SandboxRow const& row) const;

  SandboxService& service_;
  store::Store& store_;
  Sealer sealer_;
  Options options_;
};

// For the files above.

/// A route of E2B's; all but GET needs a key that may write.
void add_route(Router& router,
               std::string method,
               std::string pattern,
               Handler handler,
               Repeat repeat = Repeat::none);

Reply error_reply(int status, std::string_view message);

inline constexpr std::string_view no_proxy =
    "network.egressProxy is not available in this version: connections leave through the "
    "sandbox's own gateway";
Asker asker_of(Call const& call);

/// The body as a struct; an empty body is {}. Unknown keys are ignored.
template <class T> base::Result<T> decode_body(Call const& call) {
  auto value = body_of(call);
  if (!value) return base::passing(value);
  return wire::decode<T>(*value, wire::UnknownKeys::ignore);
}

std::unexpected<base::Error> no_such_sandbox(std::string_view id);

/// A number of the query: nothing when absent, invalid_argument outside [least, most].
base::Result<std::optional<std::int64_t>> query_number(Call const& call,
                                                       std::string_view name,
                                                       std::int64_t least,
                                                       std::int64_t most);

}  // namespace controlplane::e2b
