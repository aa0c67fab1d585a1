#pragma once

#include "store/store.hpp"
#include "wire/worker.hpp"

/// A worker told that a machine is no more: the row ends with the cause, in one transaction with
/// its event.
namespace controller {

/// What to write for that end, given the row as it is; nothing when the row is not concerned
/// (another life of it, or somebody else decides).
std::optional<store::End> end_for(store::SandboxRow const& row, wire::EndedSandbox const& ended);

class Ends {
 public:
  explicit Ends(store::Store& store) : store_(store) {}

  /// Tries again while the database cannot be asked: an end is not lost by a restart of the
  /// database. A restart of this program is covered by the stream, which begins with the ends of
  /// the last 10 minutes.
  store::asio::awaitable<void> record(wire::EndedSandbox ended);

 private:
  async::Task<void> try_record(wire::EndedSandbox ended);
  store::Store& store_;
};

}  // namespace controller
