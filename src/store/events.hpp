#pragma once

#include "store/database.hpp"

/// The outbox: what happened, in the transaction in which it happened.
///
/// Order: a bigserial alone is not in commit order, so a reader that remembers the highest id it
/// saw would skip a transaction that took its number early and committed late. Rows carry their
/// transaction's id, readers go in (transaction, id) order and never past pg_snapshot_xmin, below
/// which every transaction has ended. docs/decisions/0003-outbox.md.
namespace store {

/// A place in the outbox; text form "<transaction>-<id>", which is the id of server-sent events.
struct EventCursor {
  std::uint64_t transaction = 0;
  std::uint64_t id = 0;
  friend auto operator<=>(EventCursor const&, EventCursor const&) = default;
};

std::string to_text(EventCursor cursor);
/// invalid_argument for anything that to_text() did not make.
base::Result<EventCursor> parse_cursor(std::string_view text);

struct EventRow {
  EventCursor cursor;
  std::string project_id;  // UUID
  std::string sandbox;     // public id, "" when it is about something else
  std::string type;        // "sandbox.running"
  std::string actor;       // public id of the key, "controller", "worker"
  json::value data;
  base::WallTime created_at;
};

struct NewEvent {
  std::string project_id;
  std::string sandbox;
  std::string type;
  std::string actor;
  json::value data;
};

class Events {
 public:
  explicit Events(Database& database) : database_(database) {}

  /// For what has no statement of its own to be part of.
  async::Task<void> add(NewEvent event, base::Deadline deadline);
  /// Everything after `after`, in order, whatever project: for the one reader of a process.
  async::Task<std::vector<EventRow>> read(EventCursor after,
                                          std::uint32_t limit,
                                          base::Deadline deadline);
  /// The same for one project, and one sandbox unless `sandbox` is "".
  async::Task<std::vector<EventRow>> read_of(std::string project_id,
                                             std::string sandbox,
                                             EventCursor after,
                                             std::uint32_t limit,
                                             base::Deadline deadline);
  /// The place behind the last event that a reader may see now.
  async::Task<EventCursor> end(base::Deadline deadline);
  async::Task<std::uint64_t> trim(std::chrono::hours keep, base::Deadline deadline);

 private:
  Database& database_;
};

}  // namespace store
