#include "agent/command.hpp"

#include "base/base64.hpp"
#include "base/log.hpp"
#include "wire/codec.hpp"

#include <sys/ioctl.h>
#include <sys/wait.h>

#include <cerrno>
#include <csignal>
#include <cstring>

#include <boost/asio/error.hpp>

namespace agent {
namespace {

constexpr std::size_t pipe_piece_max = 32 * 1024;
constexpr std::size_t terminal_piece_max = 16 * 1024;
/// Background processes that a command leaves behind may hold its pipes for ever. What they write
/// shortly after its end still belongs to it (`cmd > >(tee log)`), so the end waits for a silence,
/// and not for long.
constexpr std::chrono::milliseconds straggler_silence{300};
constexpr std::chrono::milliseconds straggler_max{2000};

/// The stream of the caller acts at the deadline itself, after it has told him. This is for callers
/// that left.
constexpr std::chrono::milliseconds deadline_grace{50};

/// A command that writes without pause is read in larger pieces: a piece that comes this soon after
/// the last one...
constexpr std::chrono::milliseconds burst_gap{2};
/// ...and is this small makes its reader wait a moment for more (the pipe holds 64 KiB meanwhile).
/// Each piece costs a dozen system calls and a packet, and in an emulator those are dear.
constexpr std::size_t burst_piece = 16 * 1024;
constexpr std::chrono::milliseconds burst_pause{1};

/// One for the process: nothing awaits between filling it and copying out of it.
std::array<char, pipe_piece_max> scratch;

std::size_t piece_max_of(OutputKind kind) {
  return kind == OutputKind::terminal ? terminal_piece_max : pipe_piece_max;
}

base::SteadyTime now() {
  return base::system_clock().steady_now();
}

std::string_view key_of(OutputKind kind) {
  switch (kind) {
    case OutputKind::standard_output:
      return "stdout";
    case OutputKind::standard_error:
      return "stderr";
    case OutputKind::terminal:
      break;
  }
  return "pty";
}

/// The names that Go's runtime prints; clients compare "signal: killed" literally.
std::string signal_name(int number) {
  static constexpr std::string_view names[] = {"",
                                               "hangup",
                                               "interrupt",
                                               "quit",
                                               "illegal instruction",
                                               "trace/breakpoint trap",
                                               "aborted",
                                               "bus error",
                                               "floating point exception",
                                               "killed",
                                               "user defined signal 1",
                                               "segmentation fault",
                                               "user defined signal 2",
                                               "broken pipe",
                                               "alarm clock",
                                               "terminated"};
  if (number > 0 && number < static_cast<int>(std::size(names))) return std::string(names[number]);
  return fmt::format("signal {}", number);
}

}  // namespace

std::string status_text_of(int wait_status) {
  if (WIFEXITED(wait_status)) return fmt::format("exit status {}", WEXITSTATUS(wait_status));
  return fmt::format("signal: {}{}",
                     signal_name(WTERMSIG(wait_status)),
                     WCOREDUMP(wait_status) ? " (core dumped)" : "");
}

Command::Command(asio::any_io_executor executor,
                 pid_t pid,
                 Description description,
                 Pipes pipes,
                 ControlGroup group,
                 Limits limits)
    : pid_(pid),
      description_(std::move(description)),
      terminal_(static_cast<bool>(pipes.terminal)),
      group_(std::move(group)),
      stall_max_(limits.stall_max),
      log_(limits.log_bytes_max),
      last_output_(now()),
      changed_(executor),
      consumed_(executor),
      exit_(executor),
      input_turns_(executor) {
  auto adopt = [&](os::Fd fd) {
    return fd ? std::make_shared<PipeEnd>(executor, std::move(fd)) : nullptr;
  };
  if (terminal_) {
    input_ = output_ = adopt(std::move(pipes.terminal));
  } else {
    input_ = adopt(std::move(pipes.input));
    output_ = adopt(std::move(pipes.output));
    error_ = adopt(std::move(pipes.error));
  }
}

Command::~Command() = default;

asio::awaitable<void> Command::pump_output(std::shared_ptr<Command> self) {
  co_await self->pump(self->output_,
                      self->terminal_ ? OutputKind::terminal : OutputKind::standard_output);
}

asio::awaitable<void> Command::pump_error(std::shared_ptr<Command> self) {
  if (self->error_) co_await self->pump(self->error_, OutputKind::standard_error);
}

/// Reads once. False when there is no more to read now or ever (`outcome` says which).
bool Command::take_some(PipeEnd& end,
                        OutputKind kind,
                        std::size_t bytes_max,
                        PipeEnd::Outcome& outcome) {
  auto const moved = end.try_read(std::span(scratch.data(), std::min(bytes_max, scratch.size())));
  outcome = moved.outcome;
  if (moved.outcome == PipeEnd::Outcome::closed) end.close();
  if (moved.outcome != PipeEnd::Outcome::done) return false;
  // After the end only the pipe must not fill up: what background processes write has no listener
  // any more.
  if (ended_) return true;
  log_.append(kind, {scratch.data(), moved.bytes});
  last_output_ = now();
  changed_.notify_all();
  return true;
}

asio::awaitable<void> Command::pump(std::shared_ptr<PipeEnd> end, OutputKind kind) {
  // Waiting for readiness before each piece costs a turn of the loop, and that is what keeps a
  // command that writes without pause from starving the others.
  auto last = base::SteadyTime::min();
  while (end->is_open()) {
    co_await end->wait_readable();
    bool const burst = now() - burst_gap < last;
    if (burst && !exited_ && end->readable_bytes() < burst_piece)
      co_await async::sleep_for(burst_pause);
    co_await wait_for_room(piece_max_of(kind));
    PipeEnd::Outcome outcome{};
    take_some(*end, kind, piece_max_of(kind), outcome);
    last = now();
  }
  changed_.notify_all();
}

/// Takes what lay in the pipe when the command exited: everything the command itself has written.
asio::awaitable<void> Command::drain(std::shared_ptr<PipeEnd> end, OutputKind kind) {
  auto left = end->readable_bytes();
  while (left > 0) {
    auto const piece = std::min(left, piece_max_of(kind));
    co_await wait_for_room(piece);
    auto const before = log_.end_offset();
    PipeEnd::Outcome outcome{};
    if (!take_some(*end, kind, piece, outcome)) break;  // the pump was quicker
    left -= std::min<std::size_t>(left, log_.end_offset() - before);
  }
  // Notices the end of the stream without another turn of the loop.
  PipeEnd::Outcome outcome{};
  if (end->is_open() && end->readable_bytes() == 0 && has_room(pipe_piece_max)) {
    take_some(*end, kind, piece_max_of(kind), outcome);
  }
}

asio::awaitable<void> Command::wait_for_stragglers() {
  auto const latest = now() + straggler_max;
  while (output_->is_open() || (error_ && error_->is_open())) {
    auto const until = std::min(latest, last_output_ + straggler_silence);
    if (now() >= until) co_return;
    auto waiting = changed_.wait();
    auto const how = co_await async::run_until(until, std::move(waiting));
    if (how == async::Ended::cancelled)
      throw boost::system::system_error(asio::error::operation_aborted);
  }
}

bool Command::has_room(std::size_t bytes) const {
  for (auto const& listener : listeners_) {
    if (!listener.lossy && !log_.keeps(listener.at, bytes)) return false;
  }
  return true;
}

void Command::give_up_stalled() {
  auto const latest = now() - stall_max_;
  for (auto& listener : listeners_) {
    if (listener.lossy || listener.moved > latest || log_.keeps(listener.at, pipe_piece_max))
      continue;
    listener.lossy = true;
    base::log::debug("slow_listener", {{"pid", pid_}});
  }
}

asio::awaitable<void> Command::wait_for_room(std::size_t bytes) {
  auto const blocked = now();
  while (!has_room(bytes)) {
    auto first_to_stall = base::SteadyTime::max();
    for (auto& listener : listeners_) {
      // Idle until now is not slow: a listener has the whole time from when it first holds the
      // command back.
      listener.moved = std::max(listener.moved, blocked);
      if (!listener.lossy) first_to_stall = std::min(first_to_stall, listener.moved + stall_max_);
    }
    auto waiting = consumed_.wait();
    auto const how = co_await async::run_until(first_to_stall, std::move(waiting));
    if (how == async::Ended::cancelled)
      throw boost::system::system_error(asio::error::operation_aborted);
    if (how == async::Ended::deadline) give_up_stalled();
  }
}

void Command::on_exit(int wait_status) {
  wait_status_ = wait_status;
  exited_ = true;
  bool const failed = !WIFEXITED(wait_status) || WEXITSTATUS(wait_status) != 0;
  if (failed && group_) out_of_memory_ = group_.out_of_memory_kills() > 0;
  exit_.notify_all();
}

asio::awaitable<void> Command::wait_exit() {
  while (!exited_)
    co_await exit_.wait();
}

asio::awaitable<void> Command::supervise(std::shared_ptr<Command> self,
                                         std::optional<base::Deadline> deadline) {
  if (deadline) {
    auto exiting = self->wait_exit();
    auto const how = co_await async::run_until(*deadline + deadline_grace, std::move(exiting));
    if (how == async::Ended::cancelled)
      throw boost::system::system_error(asio::error::operation_aborted);
    if (how == async::Ended::deadline) self->kill_tree();
  }
  co_await self->wait_exit();
  self->last_output_ = now();
  co_await self->drain(self->output_,
                       self->terminal_ ? OutputKind::terminal : OutputKind::standard_output);
  if (self->error_) co_await self->drain(self->error_, OutputKind::standard_error);
  co_await self->wait_for_stragglers();
  self->finish();
}

void Command::finish() {
  ended_ = true;
  if (input_) input_->close();
  // A terminal goes with its session's leader, as when its window is closed.
  if (terminal_) output_->close();
  changed_.notify_all();
}

void Command::kill_tree() noexcept {
  if (exited_) return;
  if (group_ && group_.kill()) return;
  kill_descendants(pid_);
}

RpcResult<void> Command::signal(int number) noexcept {
  // Not reaped yet, so the number is still this process's own.
  if (exited_ || ::kill(pid_, number) != 0) {
    return rpc_fail(RpcCode::not_found, fmt::format("process with pid {} not found", pid_));
  }
  return {};
}

asio::awaitable<RpcResult<void>> Command::write_input(
    std::shared_ptr<Command> self,
    std::string bytes,
    std::function<asio::awaitable<void>()> caller_gone) {
  auto const turn = co_await self->input_turns_.enter();
  auto const end = self->input_;
  std::string_view left = bytes;
  while (!left.empty() || !end || !end->is_open()) {
    if (!end || !end->is_open()) {
      co_return rpc_fail(RpcCode::failed_precondition,
                         fmt::format("the input of process {} is closed", self->pid_));
    }
    auto const moved = end->try_write(left);
    left.remove_prefix(moved.bytes);
    if (moved.outcome == PipeEnd::Outcome::closed) end->close();
    if (moved.outcome != PipeEnd::Outcome::would_block) continue;
    auto writable = end->wait_writable();
    if (!caller_gone) {
      co_await std::move(writable);
      continue;
    }
    auto gone = caller_gone();
    auto const first = co_await async::race(std::move(writable), std::move(gone));
    if (first == async::First::right) co_return rpc_fail(RpcCode::canceled, "the caller went away");
  }
  co_return RpcResult<void>();
}

RpcResult<void> Command::close_input() {
  if (terminal_) {
    return rpc_fail(RpcCode::failed_precondition,
                    "cannot close the input of a terminal; send ctrl-d (0x04) instead");
  }
  if (input_) input_->close();
  return {};
}

RpcResult<void> Command::resize(std::uint32_t columns, std::uint32_t rows) {
  if (!terminal_) {
    return rpc_fail(RpcCode::failed_precondition,
                    fmt::format("process with pid {} has no terminal", pid_));
  }
  struct winsize size{};
  size.ws_col = static_cast<unsigned short>(std::min(columns, 65535U));
  size.ws_row = static_cast<unsigned short>(std::min(rows, 65535U));
  if (output_->is_open() && ::ioctl(output_->native_handle(), TIOCSWINSZ, &size) != 0) {
    return rpc_fail(RpcCode::internal,
                    fmt::format("the terminal was not resized: {}", std::strerror(errno)));
  }
  return {};
}

std::string Command::end_event() const {
  json::object end;
  auto const status = status_text_of(wait_status_);
  bool const exited = WIFEXITED(wait_status_);
  int const code = exited ? WEXITSTATUS(wait_status_) : -1;
  if (code != 0) end["exitCode"] = code;
  if (exited) end["exited"] = true;
  end["status"] = status;
  if (code != 0) end["error"] = status + (out_of_memory_ ? " (out of memory)" : "");
  return wire::to_text(json::object{{"event", json::object{{"end", std::move(end)}}}});
}

/// One reader of a command's events.
class CommandListener final : public MessageSource {
 public:
  CommandListener(std::shared_ptr<Command> command,
                  std::optional<std::uint64_t> from,
                  std::function<void()> on_deadline)
      : command_(std::move(command)),
        with_offsets_(from.has_value()),
        on_deadline_(std::move(on_deadline)) {
    auto const end = command_->log_.end_offset();
    place_ = command_->listeners_.insert(command_->listeners_.end(),
                                         {std::min(from.value_or(end), end), false, now()});
  }

  ~CommandListener() override {
    command_->listeners_.erase(place_);
    command_->consumed_.notify_all();
  }

  std::optional<std::string> take() override {
    if (!std::exchange(started_, true))
      return fmt::format(R"({{"event":{{"start":{{"pid":{}}}}}}})", command_->pid_);
    auto const& log = command_->log_;
    if (place_->at < log.begin_offset()) {
      auto const lost = log.begin_offset() - place_->at;
      place_->at = log.begin_offset();
      return fmt::format(R"({{"event":{{"gap":{{"bytes":{}}}}}}})", lost);
    }
    if (auto event = data_event()) return event;
    // Nothing more to send now. What may be left is the beginning of a character.
    place_->lossy = false;
    if (!command_->ended_ || std::exchange(end_sent_, true)) return std::nullopt;
    return command_->end_event();
  }

  std::optional<RpcResult<void>> ended() override {
    if (end_sent_) return RpcResult<void>();
    return std::nullopt;
  }

  asio::awaitable<void> wait() override { return command_->changed_.wait(); }

  std::string keepalive() const override { return R"({"event":{"keepalive":{}}})"; }

  void on_deadline() override {
    if (on_deadline_) on_deadline_();
  }

 private:
  /// What comes next of one stream. Clients decode each event for itself, so a character is not cut
  /// in two while its rest may still come.
  std::string gather(OutputKind& kind) const {
    auto const& log = command_->log_;
    auto piece = log.piece_at(place_->at, pipe_piece_max);
    if (!piece) return {};
    kind = piece->kind;
    std::string out;
    while (piece && piece->kind == kind && out.size() < piece_max_of(kind)) {
      out += piece->bytes.substr(0, piece_max_of(kind) - out.size());
      piece = log.piece_at(place_->at + out.size(), pipe_piece_max);
    }
    bool const rest_may_come = piece ? piece->kind == kind : !command_->ended_;
    if (rest_may_come) out.resize(out.size() - incomplete_tail(out));
    return out;
  }

  std::optional<std::string> data_event() {
    OutputKind kind{};
    auto const bytes = gather(kind);
    if (bytes.empty()) return std::nullopt;
    std::string out;
    out.reserve(bytes.size() / 3 * 4 + 64);
    out.append(R"({"event":{"data":{")").append(key_of(kind)).append(R"(":")");
    base::append_base64(out, bytes);
    out +=
        with_offsets_ ? fmt::format(R"(","offset":{}}}}}}})", place_->at) : std::string(R"("}}})");
    place_->at += bytes.size();
    place_->moved = now();
    command_->consumed_.notify_all();
    return out;
  }

  std::shared_ptr<Command> command_;
  std::list<Command::Listener>::iterator place_;
  bool with_offsets_;
  std::function<void()> on_deadline_;
  bool started_ = false;
  bool end_sent_ = false;
};

std::unique_ptr<MessageSource> Command::listen(std::shared_ptr<Command> self,
                                               std::optional<std::uint64_t> from,
                                               std::function<void()> on_deadline) {
  return std::make_unique<CommandListener>(std::move(self), from, std::move(on_deadline));
}

}  // namespace agent
