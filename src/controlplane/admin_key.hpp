#pragma once

#include "store/store.hpp"

/// The first key of an installation: organisation and project "default", a key that may do
/// everything.
namespace controlplane {

enum class Replace : std::uint8_t { no, yes };

/// The new key; "" when there is one already (and `replace` is no). With `replace`, earlier ones
/// are revoked.
async::Task<std::string> make_admin_key(store::Store* store,
                                        Replace replace,
                                        base::Deadline deadline);

}  // namespace controlplane
