#pragma once

#include "agent/connect_rpc.hpp"
#include "agent/control_group.hpp"
#include "agent/output_log.hpp"
#include "agent/pipe_end.hpp"

#include <list>

#include <boost/json/object.hpp>

namespace agent {

/// A process that somebody started through the agent, from its spawn until it is forgotten: its
/// output, its input and those who listen. Shared by the service's table, its running tasks and its
/// listeners.
///
/// Output goes into a bounded log from which every listener reads at its own pace. The command is
/// held back while a listener lags by a whole log, but no longer than `stall_max`: then that
/// listener loses the oldest bytes, and is told how many. Without listeners nothing ever holds it
/// back.
class Command {
 public:
  struct Pipes {
    os::Fd input;  // our ends; the terminal's master is `terminal`, the others are empty then
    os::Fd output;
    os::Fd error;
    os::Fd terminal;
  };

  /// How it is shown in List.
  struct Description {
    json::object config;
    std::optional<std::string> tag;
  };

  struct Limits {
    std::size_t log_bytes_max = 256 * 1024;
    std::chrono::milliseconds stall_max{20'000};
  };

  Command(asio::any_io_executor executor,
          pid_t pid,
          Description description,
          Pipes pipes,
          ControlGroup group,
          Limits limits);
  ~Command();

  pid_t pid() const noexcept { return pid_; }

  Description const& description() const noexcept { return description_; }

  bool has_terminal() const noexcept { return terminal_; }

  /// Reaped: the pid is not its own any more.
  bool exited() const noexcept { return exited_; }

  /// Its end was announced.
  bool ended() const noexcept { return ended_; }

  std::size_t log_cost() const noexcept { return log_.cost(); }

  std::uint64_t output_end() const noexcept { return log_.end_offset(); }

  // The tasks of a command, each run once by the service until it ends. `self` keeps it alive.
  /// One of these per open output.
  static asio::awaitable<void> pump_output(std::shared_ptr<Command> self);
  static asio::awaitable<void> pump_error(std::shared_ptr<Command> self);
  /// Waits for the exit (killing the tree at the deadline), takes what is left in the pipes,
  /// announces the end.
  static asio::awaitable<void> supervise(std::shared_ptr<Command> self,
                                         std::optional<base::Deadline> deadline);

  /// By the reaper.
  void on_exit(int wait_status);
  asio::awaitable<void> wait_exit();
  /// SIGKILL to everything it started.
  void kill_tree() noexcept;
  /// A signal to the process itself.
  RpcResult<void> signal(int number) noexcept;

  /// All bytes, in the order of the calls; waits while the command does not read. canceled when
  /// `caller_gone` ends.
  static asio::awaitable<RpcResult<void>> write_input(
      std::shared_ptr<Command> self,
      std::string bytes,
      std::function<asio::awaitable<void>()> caller_gone);
  RpcResult<void> close_input();
  RpcResult<void> resize(std::uint32_t columns, std::uint32_t rows);

  /// Forgotten by the service: background processes may keep the pipes (and so this) for long, but
  /// nobody can ask for the output any more.
  void drop_output() { log_.clear(); }

  /// The group, once the command has ended and nobody needs it any more.
  ControlGroup take_group() noexcept { return std::move(group_); }

  /// What a listener gets. With `from` its events carry offsets and begin there; else they begin
  /// now.
  static std::unique_ptr<MessageSource> listen(std::shared_ptr<Command> self,
                                               std::optional<std::uint64_t> from,
                                               std::function<void()> on_deadline);

 private:
  friend class CommandListener;

  struct Listener {
    std::uint64_t at = 0;
    bool lossy =
        false;  // fell behind for too long; does not hold the command back until it has caught up
    base::SteadyTime moved;
  };

  asio::awaitable<void> pump(std::shared_ptr<PipeEnd> end, OutputKind kind);
  asio::awaitable<void> drain(std::shared_ptr<PipeEnd> end, OutputKind kind);
  asio::awaitable<void> wait_for_stragglers();
  asio::awaitable<void> wait_for_room(std::size_t bytes);
  bool has_room(std::size_t bytes) const;
  void give_up_stalled();
  bool take_some(PipeEnd& end, OutputKind kind, std::size_t bytes_max, PipeEnd::Outcome& outcome);
  void finish();
  std::string end_event() const;

  pid_t pid_;
  Description description_;
  bool terminal_;
  std::shared_ptr<PipeEnd> input_;  // with a terminal all three are the same
  std::shared_ptr<PipeEnd> output_;
  std::shared_ptr<PipeEnd> error_;
  ControlGroup group_;
  std::chrono::milliseconds stall_max_;
  OutputLog log_;
  std::list<Listener> listeners_;

  int wait_status_ = 0;
  bool exited_ = false;
  bool ended_ = false;
  bool out_of_memory_ = false;
  base::SteadyTime last_output_;

  async::Signal changed_;   // output came, or the end
  async::Signal consumed_;  // a listener moved or left
  async::Signal exit_;
  async::Turnstile input_turns_;
};

/// "exit status 3", "signal: killed", in the words that clients of the protocol know.
std::string status_text_of(int wait_status);

}  // namespace agent
