#pragma once

#include "async/task.hpp"
#include "domain/host_name.hpp"
#include "gateway/address_filter.hpp"

#include <memory>
#include <vector>

namespace gateway {

/// Finds the addresses of names that policy has allowed already. Never asked about any other name,
/// and never with getaddrinfo, which would read numbers, files and search lists into a name.
class Resolver {
 public:
  virtual ~Resolver() = default;
  /// IPv4 addresses first; at most 32. `not_found` when the name has none, `unavailable` when
  /// nobody answered.
  virtual async::Task<std::vector<Address>> resolve(domain::HostName name,
                                                    base::Deadline deadline) = 0;
};

/// c-ares against exactly these servers ("address" or "address:port"; IPv4 or [IPv6]:port).
base::Result<std::unique_ptr<Resolver>> make_resolver(boost::asio::any_io_executor executor,
                                                      std::vector<std::string> const& servers);

}  // namespace gateway
