#pragma once

#include "gateway/http1.hpp"

namespace gateway {

/// Takes out every carrier of a credential that a guest could have put into a request, whatever its
/// value: header fields that APIs read keys from, and query parameters of those names. So nobody
/// can use an account of their own at a host that a credential is bound to. The list is data:
/// src/gateway/guest_auth.cpp.
void strip_guest_auth(RequestHead& head);

/// Takes out header fields that make servers behind proxies use another path, host, scheme or method
/// than the request line says. For requests under rules that look at those.
void strip_rewrites(RequestHead& head);

/// Paths at which well-known APIs give out new credentials. An injected credential must not be used
/// to mint another one that the guest could keep: requests there are refused whenever a rule
/// injects. `host` picks the profile.
bool mints_credentials(std::string_view host, std::string_view method, std::string_view path);

}  // namespace gateway
