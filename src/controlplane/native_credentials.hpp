#pragma once

#include "controlplane/native.hpp"
#include "controlplane/network_service.hpp"
#include "controlplane/sealer.hpp"

/// The native routes of credentials. A value comes in once, goes to the broker and is wiped; what
/// is stored and shown is everything but the value.
namespace controlplane {

class CredentialRoutes {
 public:
  CredentialRoutes(NetworkService& network,
                   store::Store& store,
                   asio::any_io_executor executor,
                   std::string broker_socket);

  /// The CredentialRoutes must outlive the router.
  void add_routes(Router& router);

 private:
  async::Task<Reply> list(Call& call);
  async::Task<Reply> profiles(Call& call);
  async::Task<Reply> show(Call& call);
  async::Task<Reply> put(Call& call);
  async::Task<Reply> rotate(Call& call);
  async::Task<Reply> revoke(Call& call);
  async::Task<Reply> release(Call& call);
  async::Task<Reply> set_grants(Call& call);
  async::Task<Reply> remove(Call& call);

  /// What `scope` and `template` of the query mean.
  async::Task<store::CredentialScope> scope_of(Call& call, bool to_change);
  /// The caller's, by the path and its scope: not_found.
  async::Task<store::CredentialRow> named(Call& call);
  async::Task<store::CredentialRow> store_sealed(store::NewCredential wanted,
                                                 bool exists,
                                                 base::Deadline deadline);
  /// The row, and what became of it on sandboxes that run and name it.
  async::Task<Reply> answer(Call& call, store::CredentialRow row);

  NetworkService& network_;
  store::Store& store_;
  Sealer sealer_;
};

}  // namespace controlplane
