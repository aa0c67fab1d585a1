#pragma once

#include "wire/config.hpp"

#include <boost/asio/awaitable.hpp>

/// What is between a running installation and a stopped one; `up.hpp` has the programs' entries.
namespace cli {

namespace asio = boost::asio;

/// Suspends what runs on this host, or ends it when that was asked for or does not work, and leaves
/// suspends_report_path(). The platform does it; where that does not answer, the worker alone, and
/// a controller finds them suspended at the next start. 1 when the worker cannot be asked either.
asio::awaitable<int> end_all(wire::Config config);

/// Machines that waited for a create have ended with their slots; their disks and journals go here,
/// which else the next start did. Only once no machine is left. How many.
std::size_t remove_unclaimed(wire::Config const& config);

}  // namespace cli
