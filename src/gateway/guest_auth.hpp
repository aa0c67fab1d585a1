#pragma once

#include "gateway/http1.hpp"

namespace gateway {

/// Takes out every carrier of a credential that a guest could have put into a request, whatever its
/// value: header fields that APIs read keys from, and query parameters of those names. So nobody
/// can use an account of their own at a host that a credential is bound to. The list is data:
/// src/domain/credential_profiles.json.
void strip_guest_auth(RequestHead& head);

/// Takes out header fields that make servers behind proxies use another path, host, scheme or
/// method than the request line says. For requests under rules that look at those.
void strip_rewrites(RequestHead& head);

}  // namespace gateway
