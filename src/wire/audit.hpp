#pragma once

#include "wire/codec.hpp"

/// Signed checkpoints of a worker's audit log, from the worker through the controller to whoever
/// verifies.
///
///   GET /audit/checkpoints?after=N   (worker.sock) → AuditCheckpoints
namespace wire {

/// "At this time the log of this node went from `first_sequence` to `last_sequence`, whose line has
/// this hash."
struct AuditCheckpoint {
  std::string node;
  std::uint64_t first_sequence = 0;  // lines before it were taken by retention
  std::uint64_t last_sequence = 0;
  std::string hash;             // 64 hex digits
  std::int64_t made_at_us = 0;  // since 1970, by the worker's clock
  std::string signature;        // Ed25519 over audit::signed_text(), 128 hex digits

  static bool required(std::string_view) { return true; }
};
BOOST_DESCRIBE_STRUCT(AuditCheckpoint,
                      (),
                      (node, first_sequence, last_sequence, hash, made_at_us, signature))

struct AuditCheckpoints {
  std::string public_key;  // 64 hex digits
  /// Those behind `after`, in the order in which they were made; the latest one in any case.
  std::vector<AuditCheckpoint> checkpoints;
  std::string
      hash_at_after;    // of the line with the number `after` as the worker has it; "": it has none
  std::string problem;  // why no checkpoint can be made: the log's beginning went without retention
};
BOOST_DESCRIBE_STRUCT(AuditCheckpoints, (), (public_key, checkpoints, hash_at_after, problem))

}  // namespace wire
