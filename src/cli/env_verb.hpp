#pragma once

#include "cli/client.hpp"

namespace cli {

/// `space env`: lines for a shell that point E2B clients here; for this host's installation.
int env(Global const& global, bool plain_http);

/// `space version`.
int show_version(Global const& global);

}  // namespace cli
