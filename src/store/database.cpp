#include "store/database.hpp"

#include "base/assert.hpp"
#include "base/fault.hpp"
#include "base/log.hpp"

#include <deque>
#include <set>

#include <boost/asio/posix/stream_descriptor.hpp>
#include <postgresql/libpq-fe.h>

namespace store {
namespace {

constexpr std::size_t waiting_max = 2000;
constexpr std::size_t cancels_max = 2;
constexpr std::chrono::milliseconds pause_min{20};
constexpr std::chrono::milliseconds pause_max{1000};

// Guard rails of every session. client_connection_check_interval ends the statement of a client
// that is gone, should the cancel below not get through.
constexpr char const* prelude =
    "set statement_timeout = '20s'; set lock_timeout = '5s'; "
    "set idle_in_transaction_session_timeout = '10s'; "
    "set client_connection_check_interval = '2s'; set timezone = 'UTC'; "
    "set standard_conforming_strings = on";

struct ResultFree {
  void operator()(PGresult* result) const noexcept { PQclear(result); }
};

using ResultPtr = std::unique_ptr<PGresult, ResultFree>;

struct ConnectionFree {
  void operator()(PGconn* connection) const noexcept { PQfinish(connection); }
};

using ConnectionPtr = std::unique_ptr<PGconn, ConnectionFree>;

base::Code code_of_state(std::string_view state) noexcept {
  auto const family = state.substr(0, 2);
  if (family == "23") return base::Code::conflict;
  if (state == "57014") return base::Code::deadline_exceeded;
  if (family == "08" || family == "53" || family == "57" || family == "40" || family == "58" ||
      state == "55P03" || state == "25P03") {
    return base::Code::unavailable;
  }
  return base::Code::internal;
}

std::string_view sentence_of(base::Code code) noexcept {
  switch (code) {
    case base::Code::conflict:
      return "it is in the way of something that exists";
    case base::Code::deadline_exceeded:
      return "the database did not finish in time";
    case base::Code::unavailable:
      return "the database is not available at the moment; try again";
    default:
      return "the database refused a statement";
  }
}

base::Error error_of(PGresult const* result, std::string_view statement) {
  char const* state = PQresultErrorField(result, PG_DIAG_SQLSTATE);
  std::string_view const known = state ? state : "08000";
  auto const code = code_of_state(known);
  return {code,
          std::string(sentence_of(code)),
          fmt::format("{} {}: {}", known, statement, PQresultErrorMessage(result))};
}

base::Error broken(PGconn const* connection, std::string_view step) {
  return {base::Code::unavailable,
          std::string(sentence_of(base::Code::unavailable)),
          fmt::format("08000 {}: {}", step, PQerrorMessage(connection))};
}

/// One session. While a statement runs, `busy()`: to be destroyed then, it must be cancelled first.
class Connection {
 public:
  Connection(asio::any_io_executor executor, ConnectionPtr connection)
      : owned_(std::move(connection)),
        connection_(owned_.get()),
        descriptor_(std::move(executor)) {}

  Connection(Connection const&) = delete;

  ~Connection() {
    // libpq owns the descriptor.
    if (descriptor_.is_open()) descriptor_.release();
  }

  asio::awaitable<base::Result<void>> handshake() {
    PQsetnonblocking(connection_, 1);
    for (;;) {
      if (auto followed = follow_socket(); !followed) co_return base::passing(followed);
      switch (PQconnectPoll(connection_)) {
        case PGRES_POLLING_OK: {
          if (!PQsendQuery(connection_, prelude))
            co_return std::unexpected(broken(connection_, "set up"));
          busy_ = true;
          auto done = co_await collect("set up");
          if (!done) co_return base::passing(done);
          co_return base::Result<void>();
        }
        case PGRES_POLLING_READING:
          if (auto followed = follow_socket(); !followed) co_return base::passing(followed);
          co_await descriptor_.async_wait(asio::posix::stream_descriptor::wait_read,
                                          asio::use_awaitable);
          break;
        case PGRES_POLLING_WRITING:
          if (auto followed = follow_socket(); !followed) co_return base::passing(followed);
          co_await descriptor_.async_wait(asio::posix::stream_descriptor::wait_write,
                                          asio::use_awaitable);
          break;
        default:
          co_return std::unexpected(broken(connection_, "connect"));
      }
    }
  }

  asio::awaitable<base::Result<Rows>> execute(Statement const* statement, Params const* params) {
    if (!prepared_.contains(statement->name)) {
      busy_ = true;
      auto const sql = "/* " + statement->name + " */ " + statement->sql;
      if (!PQsendPrepare(connection_, statement->name.c_str(), sql.c_str(), 0, nullptr)) {
        co_return std::unexpected(broken(connection_, statement->name));
      }
      auto prepared = co_await collect(statement->name);
      if (!prepared) co_return base::passing(prepared);
      prepared_.insert(statement->name);
    }
    std::vector<char const*> values;
    for (auto const& value : params->values())
      values.push_back(value ? value->c_str() : nullptr);
    busy_ = true;
    if (!PQsendQueryPrepared(connection_,
                             statement->name.c_str(),
                             static_cast<int>(values.size()),
                             values.data(),
                             nullptr,
                             nullptr,
                             0)) {
      co_return std::unexpected(broken(connection_, statement->name));
    }
    auto rows = co_await collect(statement->name);
    co_return rows;
  }

  bool busy() const noexcept { return busy_; }

  /// Can the next statement go here? Notices a server that closed its side while we were idle.
  bool usable() noexcept {
    return !busy_ && !spoiled_ && PQconsumeInput(connection_) == 1 &&
           PQstatus(connection_) == CONNECTION_OK &&
           PQtransactionStatus(connection_) == PQTRANS_IDLE;
  }

  PGcancel* cancel_handle() noexcept { return PQgetCancel(connection_); }

 private:
  /// libpq may change its socket while it tries addresses.
  base::Result<void> follow_socket() {
    int const socket = PQsocket(connection_);
    if (socket < 0) return std::unexpected(broken(connection_, "connect"));
    if (descriptor_.is_open() && descriptor_.native_handle() == socket) return {};
    if (descriptor_.is_open()) descriptor_.release();
    boost::system::error_code error;
    descriptor_.assign(socket, error);
    if (error)
      return base::fail(
          base::Code::internal, "the event loop refused a database socket", error.message());
    return {};
  }

  /// Waits for the end of what was sent; the rows of its last result.
  asio::awaitable<base::Result<Rows>> collect(std::string name);

  ConnectionPtr owned_;
  PGconn* connection_;
  asio::posix::stream_descriptor descriptor_;
  std::set<std::string> prepared_;
  bool busy_ = false;
  bool spoiled_ = false;
};

}  // namespace

struct Rows::Impl {
  ResultPtr result;
};

namespace {

asio::awaitable<base::Result<Rows>> Connection::collect(std::string name) {
  for (;;) {
    int const flushed = PQflush(connection_);
    if (flushed < 0) co_return std::unexpected(broken(connection_, name));
    if (flushed == 0) break;
    co_await descriptor_.async_wait(asio::posix::stream_descriptor::wait_write,
                                    asio::use_awaitable);
  }
  ResultPtr last;
  for (;;) {
    while (PQisBusy(connection_)) {
      co_await descriptor_.async_wait(asio::posix::stream_descriptor::wait_read,
                                      asio::use_awaitable);
      if (!PQconsumeInput(connection_)) co_return std::unexpected(broken(connection_, name));
    }
    ResultPtr next(PQgetResult(connection_));
    if (!next) break;
    // Of a batch the first failure counts; libpq ends the batch there.
    last = std::move(next);
  }
  if (!last || PQstatus(connection_) != CONNECTION_OK)
    co_return std::unexpected(broken(connection_, name));
  busy_ = false;
  auto const status = PQresultStatus(last.get());
  if (status != PGRES_TUPLES_OK && status != PGRES_COMMAND_OK) {
    auto error = error_of(last.get(), name);
    // "cached plan must not change result type", after a migration: this session's plans are stale.
    if (error.detail().starts_with("0A000")) spoiled_ = true;
    co_return std::unexpected(std::move(error));
  }
  auto impl = std::make_shared<Rows::Impl>();
  impl->result = std::move(last);
  co_return Rows(std::move(impl));
}

}  // namespace

std::size_t Rows::size() const noexcept {
  return impl_ ? static_cast<std::size_t>(PQntuples(impl_->result.get())) : 0;
}

std::uint64_t Rows::affected() const noexcept {
  if (!impl_) return 0;
  auto const text = std::string_view(PQcmdTuples(impl_->result.get()));
  std::uint64_t count = 0;
  for (char const c : text)
    if (c >= '0' && c <= '9') count = count * 10 + static_cast<std::uint64_t>(c - '0');
  return count;
}

std::optional<std::string_view> Rows::at(std::size_t row, std::size_t column) const noexcept {
  SPACE_ASSERT(
      impl_ && row < size() && column < static_cast<std::size_t>(PQnfields(impl_->result.get())),
      "statement and reader agree on the columns");
  auto const r = static_cast<int>(row);
  auto const c = static_cast<int>(column);
  if (PQgetisnull(impl_->result.get(), r, c)) return std::nullopt;
  return std::string_view(PQgetvalue(impl_->result.get(), r, c),
                          static_cast<std::size_t>(PQgetlength(impl_->result.get(), r, c)));
}

struct Database::Impl {
  Impl(asio::any_io_executor e, DatabaseOptions o)
      : executor(std::move(e)),
        options(std::move(o)),
        permits(options.connections_max),
        cancels(executor) {}

  /// The right to use one connection; waits its turn.
  class Permit {
   public:
    explicit Permit(Impl& impl) : impl_(&impl) {}

    Permit(Permit&& from) noexcept : impl_(std::exchange(from.impl_, nullptr)) {}

    Permit& operator=(Permit&&) = delete;

    ~Permit() {
      if (impl_) impl_->release_permit();
    }

   private:
    Impl* impl_;
  };

  /// A connection in use. Whoever lets go of it in the middle of a statement (cancelled, deadline,
  /// broken) leaves it to be cancelled on the server and closed.
  class Lease {
   public:
    Lease(Impl& impl, std::unique_ptr<Connection> connection)
        : impl_(&impl), connection_(std::move(connection)) {}

    Lease(Lease const&) = delete;

    ~Lease() {
      if (connection_) impl_->take_back(std::move(connection_));
    }

    Connection& operator*() noexcept { return *connection_; }

   private:
    Impl* impl_;
    std::unique_ptr<Connection> connection_;
  };

  struct Waiter {
    explicit Waiter(asio::any_io_executor e) : signal(std::move(e)) {}

    async::Signal signal;
    bool granted = false;
  };

  async::Task<Permit> acquire() {
    if (permits > 0) {
      --permits;
      co_return Permit(*this);
    }
    if (waiters.size() >= waiting_max) {
      co_return base::fail(base::Code::unavailable,
                           "too many requests wait for the database; try again");
    }
    Waiter self(executor);
    waiters.push_back(&self);

    // A waiter that is cancelled leaves the line, or passes on what it was granted meanwhile.
    struct Leave {
      Impl& impl;
      Waiter& waiter;
      bool taken = false;

      ~Leave() {
        std::erase(impl.waiters, &waiter);
        if (waiter.granted && !taken) impl.release_permit();
      }
    } leave{*this, self};

    while (!self.granted)
      co_await self.signal.wait();
    leave.taken = true;
    co_return Permit(*this);
  }

  void release_permit() noexcept {
    if (waiters.empty()) {
      ++permits;
      return;
    }
    Waiter* next = waiters.front();
    waiters.pop_front();
    next->granted = true;
    next->signal.notify_all();
  }

  void take_back(std::unique_ptr<Connection> connection) noexcept {
    if (!closed && connection->usable()) {
      idle.push_back(std::move(connection));
      return;
    }
    --open;
    ++dropped;
    if (!connection->busy() || cancels.running() >= cancels_max) return;
    try {
      cancels.spawn("cancel a statement", cancel_on_server(std::move(connection)));
    } catch (std::exception const& e) {
      // The server notices by itself within client_connection_check_interval.
      base::log::warn("database_cancel_lost", {{"why", e.what()}});
    }
  }

  static asio::awaitable<void> cancel_on_server(std::unique_ptr<Connection> connection) {
    struct Free {
      void operator()(PGcancel* handle) const noexcept { PQfreeCancel(handle); }
    };

    std::unique_ptr<PGcancel, Free> const handle(connection->cancel_handle());
    auto* const raw = handle.get();
    // PQcancel connects and waits: not on the loop.
    std::function<void()> cancel = [raw] {
      std::array<char, 256> why{};
      if (raw) PQcancel(raw, why.data(), static_cast<int>(why.size()));
    };
    co_await async::run_blocking(std::move(cancel));
  }

  /// A connection that is open, or a new one; retries with a growing pause until the deadline is
  /// near.
  async::Task<std::unique_ptr<Connection>> connect(base::Deadline deadline);
  async::Task<std::unique_ptr<Connection>> connect_once();
  async::Task<Rows> run(Statement const* statement, Params params, base::Deadline deadline);

  asio::any_io_executor executor;
  DatabaseOptions options;
  std::size_t permits;
  std::deque<Waiter*> waiters;
  std::vector<std::unique_ptr<Connection>> idle;
  std::size_t open = 0;
  std::uint64_t statements = 0;
  std::uint64_t dropped = 0;
  std::chrono::milliseconds pause{0};
  base::SteadyTime not_before{};
  bool closed = false;
  async::TaskGroup cancels;  // last: its children use the members above
};

async::Task<std::unique_ptr<Connection>> Database::Impl::connect_once() {
  // PQconnectStart resolves names, which blocks.
  auto const conninfo = options.conninfo;
  auto const program = options.program;
  std::function<ConnectionPtr()> start = [conninfo, program] {
    std::array<char const*, 3> const keys{"dbname", "application_name", nullptr};
    std::array<char const*, 3> const values{conninfo.c_str(), program.c_str(), nullptr};
    return ConnectionPtr(PQconnectStartParams(keys.data(), values.data(), 1));
  };
  auto started = co_await async::blocking(std::move(start));
  if (!started) co_return base::fail(base::Code::internal, "no memory for a database connection");
  if (PQstatus(started.get()) == CONNECTION_BAD) {
    co_return std::unexpected(broken(started.get(), "connect"));
  }
  auto connection = std::make_unique<Connection>(executor, std::move(started));
  auto shaken = co_await connection->handshake();
  if (!shaken) co_return base::passing(shaken);
  co_return connection;
}

async::Task<std::unique_ptr<Connection>> Database::Impl::connect(base::Deadline deadline) {
  for (;;) {
    auto const now = base::system_clock().steady_now();
    if (now < not_before) {
      if (not_before + pause_min >= deadline) {
        co_return base::fail(base::Code::unavailable,
                             std::string(sentence_of(base::Code::unavailable)),
                             "08000 not connected");
      }
      co_await async::sleep_until(not_before);
    }
    auto attempt = connect_once();
    auto const limit = std::min(deadline, base::system_clock().in(options.connect_timeout));
    auto connection = co_await async::with_deadline(limit, std::move(attempt));
    if (connection) {
      pause = std::chrono::milliseconds(0);
      not_before = {};
      co_return connection;
    }
    if (connection.error().code() == base::Code::cancelled) co_return base::passing(connection);
    pause = std::clamp(pause * 2, pause_min, pause_max);
    not_before = base::system_clock().in(pause);
    base::log::warn("database_connect_failed",
                    {{"why", connection.error().detail()}, {"pause_ms", pause.count()}});
  }
}

async::Task<Rows> Database::Impl::run(Statement const* statement,
                                      Params params,
                                      base::Deadline deadline) {
  auto permit = co_await acquire();
  if (!permit) co_return base::passing(permit);
  for (bool second = false;; second = true) {
    std::unique_ptr<Connection> connection;
    while (!idle.empty() && !connection) {
      connection = std::move(idle.back());
      idle.pop_back();
      if (connection->usable()) break;
      connection.reset();
      --open;
      ++dropped;
    }
    bool const kept = connection != nullptr;
    if (!connection) {
      auto fresh = co_await connect(deadline);
      if (!fresh) co_return base::passing(fresh);
      connection = std::move(*fresh);
      ++open;
    }
    Lease lease(*this, std::move(connection));
    ++statements;
    if (SPACE_FAULT("store.statement.before")) {
      co_return base::fail(
          base::Code::unavailable, "the database is not available (injected)", "08000 injected");
    }
    auto rows = co_await (*lease).execute(statement, &params);
    if (SPACE_FAULT("store.statement.after")) {
      co_return base::fail(
          base::Code::unavailable, "the database is not available (injected)", "08000 injected");
    }
    if (rows) co_return rows;
    // Only a read may be sent twice; the server may have finished a write before the connection
    // broke.
    bool const lost =
        sqlstate_of(rows.error()) == "08000" || sqlstate_of(rows.error()).starts_with("57P");
    if (!lost || !kept || second || statement->kind != Statement::Kind::read) {
      if (rows.error().code() == base::Code::internal) {
        base::log::error("statement_refused",
                         {{"statement", statement->name}, {"why", rows.error().detail()}});
      }
      co_return base::passing(rows);
    }
  }
}

Database::Database(asio::any_io_executor executor, DatabaseOptions options)
    : impl_(std::make_unique<Impl>(std::move(executor), std::move(options))) {}

Database::~Database() = default;

async::Task<Rows> Database::run(Statement const& statement,
                                Params params,
                                base::Deadline deadline) {
  auto running = impl_->run(&statement, std::move(params), deadline);
  auto rows = co_await async::with_deadline(deadline, std::move(running));
  co_return rows;
}

asio::awaitable<void> Database::close() {
  impl_->closed = true;
  impl_->open -= impl_->idle.size();
  impl_->idle.clear();
  co_await impl_->cancels.join();
}

Database::Stats Database::stats() const noexcept {
  return {impl_->open, impl_->idle.size(), impl_->statements, impl_->dropped};
}

std::string_view sqlstate_of(base::Error const& error) noexcept {
  auto const detail = std::string_view(error.detail());
  auto const end = detail.find(' ');
  if (end != 5) return {};
  return detail.substr(0, 5);
}

}  // namespace store
