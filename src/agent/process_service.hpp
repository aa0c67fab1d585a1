#pragma once

#include "agent/command.hpp"
#include "agent/connect_rpc.hpp"
#include "agent/context.hpp"
#include "agent/control_group.hpp"
#include "agent/reaper.hpp"
#include "agent/spawn.hpp"
#include "agent/users.hpp"

#include <deque>
#include <map>

namespace agent {

/// process.Process: starts commands, lists them, lets callers listen, write, signal. Owns all
/// commands; they live on without callers. One thread.
class ProcessService final : public RpcService {
 public:
  static constexpr std::size_t commands_max = 2048;
  static constexpr std::size_t ended_kept_max = 64;
  static constexpr std::chrono::seconds ended_kept_for{30};
  static constexpr std::size_t log_bytes_max = 256 * 1024;
  /// When all logs together are over this, new commands get a small one.
  static constexpr std::size_t logs_bytes_soft_max = 8 * 1024 * 1024;
  static constexpr std::size_t small_log_bytes_max = 64 * 1024;

  struct Options {
    std::string control_group_root;  // where cgroup2 is mounted, or ""
    bool reset_oom_score = false;    // the agent protects itself, commands shall not inherit that
    bool reset_real_time = false;
    /// How long a reader that does not read may hold a command back.
    std::chrono::milliseconds stall_max{20'000};
  };

  /// `context` and `reaper` outlive the service.
  ProcessService(asio::any_io_executor executor, Context& context, Reaper& reaper, Options options);

  /// Kills what still runs and waits for the tasks.
  asio::awaitable<void> close();

  std::size_t running() const noexcept override { return running_.size(); }

  std::string_view name() const override { return "process.Process"; }

  RpcKind kind_of(std::string_view method) const override;
  asio::awaitable<RpcResult<json::value>> unary(RpcCall call, json::value message) override;
  asio::awaitable<RpcResult<std::unique_ptr<MessageSource>>> open_stream(
      RpcCall call, json::value message) override;
  asio::awaitable<RpcResult<json::value>> client_stream(RpcCall call,
                                                        MessageReader& messages) override;

 private:
  using CommandRef = std::shared_ptr<Command>;

  struct Ended {
    CommandRef command;
    base::SteadyTime until;
  };

  struct Input {
    std::optional<std::string> bytes;
    bool for_terminal = false;
  };
  struct Start;

  RpcResult<CommandRef> start(RpcCall const& call, json::value const& message);
  RpcResult<CommandRef> launch(Start start);
  RpcResult<SpawnPlan> plan_of(Start const& start, User const& user) const;
  std::vector<std::string> environment_of(Start const& start, User const& user) const;
  void adopt(CommandRef command, std::optional<base::Deadline> deadline);
  asio::awaitable<void> supervise(CommandRef command, std::optional<base::Deadline> deadline);
  void retire(CommandRef const& command);
  void forget_old();
  asio::awaitable<void> forget_in_time();
  std::size_t logs_bytes() const;

  RpcResult<CommandRef> find(Fields& fields);
  RpcResult<CommandRef> selected(json::value const& selector) const;
  json::value list() const;
  asio::awaitable<RpcResult<void>> send_input(RpcCall call, json::value message);
  asio::awaitable<RpcResult<void>> send_signal(json::value message);
  RpcResult<void> update(json::value const& message);
  static RpcResult<Input> input_of(json::value const& message);
  asio::awaitable<RpcResult<void>> write(CommandRef command,
                                         Input input,
                                         std::function<asio::awaitable<void>()> gone);

  asio::any_io_executor executor_;
  Context& context_;
  Reaper& reaper_;
  Options options_;
  ControlGroups groups_;
  os::Fd null_;
  std::map<pid_t, CommandRef> running_;  // from spawn until the end is announced
  std::deque<Ended> ended_;              // oldest first
  async::Signal ended_changed_;
  async::TaskGroup tasks_;
};

}  // namespace agent
