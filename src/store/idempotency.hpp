#pragma once

#include "store/database.hpp"

/// Answers of POSTs that carried an Idempotency-Key, kept for 24 hours. Creates and deletes of
/// sandboxes do not need it: their operation row carries the key in the same transaction as the
/// change.
namespace store {

struct IdempotencyClaim {
  /// ours: go on, then call finish(). replay: answer with `status` and `body`. busy: the first
  /// request is still running. mismatch: the key was used for another request. interrupted: the
  /// first one died half-way and its outcome is unknown.
  enum class Outcome : std::uint8_t {
    ours,
    replay,
    busy,
    mismatch,
    interrupted
  } outcome = Outcome::ours;
  int status = 0;
  std::string body;
};

class Idempotency {
 public:
  explicit Idempotency(Database& database) : database_(database) {}

  async::Task<IdempotencyClaim> claim(std::string project_id,
                                      std::string key,
                                      std::string request_sha256,
                                      base::Deadline deadline);
  async::Task<void> finish(std::string project_id,
                           std::string key,
                           int status,
                           std::string body,
                           base::Deadline deadline);
  /// The request failed before it changed anything: the key may be used again.
  async::Task<void> release(std::string project_id, std::string key, base::Deadline deadline);
  async::Task<std::uint64_t> trim(base::Deadline deadline);

 private:
  Database& database_;
};

}  // namespace store
