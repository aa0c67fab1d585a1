#pragma once

#include "wire/config.hpp"

#include <chrono>

#include <boost/asio/awaitable.hpp>

/// What is between a running installation and a stopped one; `up.hpp` has the programs' entries.
namespace cli {

namespace asio = boost::asio;

/// How long the end of all sandboxes may take at the most, step by step, each only when those
/// before it took all of theirs. Whoever waits for it (the supervisor, `space down`) counts from
/// here, so that nobody is killed while he still suspends.
struct EndLimits {
  std::chrono::seconds platform{120};  // which gives up by itself after 110 (suspend_all_timeout)
  std::chrono::seconds list{10};  // asked before the worker suspends, and before what is left ends
  std::chrono::seconds worker{100};  // suspends by the worker alone
  std::chrono::seconds end{50};      // of what could not be suspended

  constexpr std::chrono::seconds all() const { return platform + list + worker + list + end; }
};

inline constexpr EndLimits end_limits;
/// Above that, for the start of the step and its way out.
inline constexpr std::chrono::seconds end_sandboxes_limit =
    end_limits.all() + std::chrono::seconds{10};
inline constexpr std::chrono::seconds clear_slots_limit{60};
/// Both steps, and the programs, of which each but those that hang ends at once.
inline constexpr std::chrono::seconds down_limit =
    end_sandboxes_limit + clear_slots_limit + std::chrono::seconds{30};

/// Suspends what runs on this host, or ends it when that was asked for or does not work, and leaves
/// suspends_report_path(). The platform does it; where that does not answer, the worker alone, and
/// a controller finds them suspended at the next start. 1 when the worker cannot be asked either.
asio::awaitable<int> end_all(wire::Config config);

/// Machines that waited for a create have ended with their slots; their disks and journals go here,
/// which else the next start did. Only once no machine is left. How many.
std::size_t remove_unclaimed(wire::Config const& config);

}  // namespace cli
