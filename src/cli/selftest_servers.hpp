#pragma once

#include "base/result.hpp"

#include <string>
#include <vector>

/// The servers of the self-test's internet (selftest_rig.hpp), as a process of their own.
namespace cli::selftest {

/// Every address they listen on.
std::vector<std::string> addresses_of_servers();

inline constexpr char server_of_names[] = "203.0.113.53";

/// Serves for ever in the network namespace that the process is in. What is read is kept in
/// DIRECTORY/arrived, a file per connection; whom to trust is in DIRECTORY/ca.pem. Writes a byte to
/// `ready` once all listen; what was in the way is in DIRECTORY/failed.
int run_servers(std::string const& directory, int ready);

}  // namespace cli::selftest
