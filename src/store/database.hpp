#pragma once

#include "async/task.hpp"

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <boost/json/value.hpp>

/// PostgreSQL as coroutines. This folder holds all SQL of the project; everybody else calls its
/// typed functions (sandboxes.hpp, operations.hpp, …). libpq stays inside database.cpp and
/// migrate.cpp.
namespace store {

namespace asio = boost::asio;
namespace json = boost::json;

/// One prepared statement. Constants of this type stand above the function that runs them.
struct Statement {
  /// "sandboxes.create": shows in pg_stat_activity, and is the fault point
  /// "store.sandboxes.create".
  std::string name;
  std::string sql;
  /// Reads are sent again once, on another connection, when a kept connection turns out to be dead;
  /// writes never are.
  enum class Kind : std::uint8_t { read, write } kind = Kind::write;
};

/// Values of $1, $2, … in order, in PostgreSQL's text form.
class Params {
 public:
  Params& text(std::string value);
  Params& text_or_null(std::optional<std::string> value);
  /// NULL when empty.
  Params& text_unless_empty(std::string value);
  Params& number(std::int64_t value);
  Params& number_or_null(std::optional<std::int64_t> value);
  Params& boolean(bool value);
  Params& document(json::value const& value);
  /// Microseconds since 1970, for the SQL function space_time(bigint).
  Params& time(base::WallTime value);
  Params& time_or_null(std::optional<base::WallTime> value);
  /// text[]
  Params& texts(std::vector<std::string> const& values);

  std::vector<std::optional<std::string>> const& values() const noexcept { return values_; }

 private:
  std::vector<std::optional<std::string>> values_;
};

/// The rows of one statement. Cheap to copy; the texts live as long as any copy.
class Rows {
 public:
  struct Impl;
  Rows() = default;

  explicit Rows(std::shared_ptr<Impl const> impl) : impl_(std::move(impl)) {}

  std::size_t size() const noexcept;

  bool empty() const noexcept { return size() == 0; }

  /// Rows that a statement without RETURNING changed.
  std::uint64_t affected() const noexcept;
  /// Nothing for NULL.
  std::optional<std::string_view> at(std::size_t row, std::size_t column) const noexcept;

 private:
  std::shared_ptr<Impl const> impl_;
};

/// Takes the columns of one row from left to right, as the statement lists them. A column that is
/// not of the asked type is a bug of ours and asserts: statement and reader stand on one screen.
class RowReader {
 public:
  RowReader(Rows const& rows, std::size_t row) : rows_(rows), row_(row) {}

  /// NULL reads as "".
  std::string text();
  std::optional<std::string> text_or_nothing();
  std::int64_t number();

  template <class T> T as() { return static_cast<T>(number()); }

  std::optional<std::int64_t> number_or_nothing();
  bool boolean();
  /// NULL reads as json null.
  json::value document();
  /// A column made with space_us(timestamptz).
  base::WallTime time();
  std::optional<base::WallTime> time_or_nothing();

 private:
  Rows const& rows_;
  std::size_t row_;
  std::size_t column_ = 0;
};

struct DatabaseOptions {
  /// libpq's: "host=/run/space/postgres dbname=space user=space_api", or a URL.
  std::string conninfo;
  std::string program = "space";  // application_name
  std::size_t connections_max = 8;
  std::chrono::milliseconds connect_timeout{3000};
};

/// A small pool of connections to one database. Statements wait in line for a free connection,
/// first come, first served, no longer than their deadline. A statement whose deadline passes, or
/// whose caller is cancelled, is cancelled on the server too, and its connection is dropped. Broken
/// connections are dropped; new ones are opened on demand, with a growing pause (20 ms to 1 s)
/// after a failure.
///
/// One loop. The owner awaits close() before destruction.
class Database {
 public:
  Database(asio::any_io_executor executor, DatabaseOptions options);
  ~Database();
  Database(Database const&) = delete;
  Database& operator=(Database const&) = delete;

  /// Runs one statement as one transaction. Errors: unavailable (no connection, server going down),
  /// deadline_exceeded, conflict (unique, check or foreign key violated, serialization, deadlock),
  /// internal (our SQL is wrong). What the server said is in detail(), never in message().
  async::Task<Rows> run(Statement const& statement, Params params, base::Deadline deadline);

  /// Ends idle connections, waits for the cancels under way. No statement may run any more.
  asio::awaitable<void> close();

  struct Stats {
    std::size_t open = 0;
    std::size_t idle = 0;
    std::uint64_t statements = 0;
    std::uint64_t dropped = 0;
  };

  Stats stats() const noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// SQLSTATE of a failed statement: the first five characters of detail(); "" for other failures.
std::string_view sqlstate_of(base::Error const& error) noexcept;

}  // namespace store
