#pragma once

#include "hostd/protocol.hpp"
#include "os/fd.hpp"

#include <cstdint>

/// The network of one slot: a namespace with the loopback, one tap and nothing else. No other link,
/// no route out, no forwarding; addresses and MACs are the same in every slot, so that a machine
/// may live in any.
namespace hostd {

inline constexpr char tap_name[] = "sbx0";
/// Answers of the guest reach a socket of the host only when it carries this mark (slot.nft).
inline constexpr int host_mark = 2;

struct SlotNetwork {
  os::Fd netns;
  os::Fd tap;
  std::uint32_t rules_generation = 0;  // with exactly our rules in it
};

/// Makes a namespace with everything in it; rules are loaded before the tap is up. Nobody knows it
/// yet: it vanishes with the descriptors unless it is pinned.
base::Result<SlotNetwork> make_slot_network();

/// Opens the tap of a namespace that an earlier hostd made.
base::Result<os::Fd> reopen_tap(os::FdRef netns);

/// Polices both directions to so many bytes a second each (bursts of one second's worth, at least
/// 64 KiB), or lifts that (0). In the slot's kernel rules, where a VMM that was taken over cannot
/// change it.
base::Result<void> limit_network(os::FdRef netns, std::uint64_t bytes_per_s);

/// Replaces what the guard lets through to the gateway besides synthetic addresses, in one
/// transaction. The passage was validated.
base::Result<void> let_through(os::FdRef netns, Passage const& passage);

/// Gives the slot the rules that it was made with, whatever it has now: nothing is let through.
base::Result<void> close_slot(os::FdRef netns);

/// A marked, non-blocking TCP socket in the namespace, connecting to the guest's `port`.
base::Result<os::Fd> dial_guest(os::FdRef netns, std::uint16_t port);

}  // namespace hostd
