#pragma once

#include "hostd/protocol.hpp"

#include <string_view>

namespace hostd {

/// What a request must keep to on this host.
struct Bounds {
  std::uint32_t slots = 0;
  bool kvm = false;
  bool firecracker = false;
};

/// "" or what is wrong with it. Looks at every field that the action uses; fields that it does not
/// use must be zero, so that a caller of another version is noticed. Pure.
std::string_view fault_in(Request const& request, Bounds const& bounds);

}  // namespace hostd
