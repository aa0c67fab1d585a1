#include "agent/process_service.hpp"

#include "agent/path.hpp"
#include "agent/terminal.hpp"
#include "base/log.hpp"

#include <cerrno>
#include <csignal>

#include <boost/json/array.hpp>
#include <fcntl.h>
#include <unistd.h>

namespace agent {
namespace {

constexpr std::chrono::seconds kill_wait{5};

struct MethodRow {
  std::string_view name;
  RpcKind kind;
};

constexpr MethodRow methods[] = {
    {"List", RpcKind::unary},
    {"Start", RpcKind::server_stream},
    {"Connect", RpcKind::server_stream},
    {"Update", RpcKind::unary},
    {"StreamInput", RpcKind::client_stream},
    {"SendInput", RpcKind::unary},
    {"SendSignal", RpcKind::unary},
    {"CloseStdin", RpcKind::unary},
};

std::vector<std::pair<std::string_view, int>> const& signal_names() {
  static std::vector<std::pair<std::string_view, int>> const names{
      {"SIGNAL_UNSPECIFIED", 0}, {"SIGNAL_SIGKILL", SIGKILL}, {"SIGNAL_SIGTERM", SIGTERM}};
  return names;
}

RpcResult<json::value> empty_or(RpcResult<void> result) {
  if (!result) return std::unexpected(std::move(result.error()));
  return json::value(json::object());
}

base::SteadyTime now() {
  return base::system_clock().steady_now();
}

}  // namespace

ProcessService::ProcessService(asio::any_io_executor executor,
                               Context& context,
                               Reaper& reaper,
                               Options options)
    : executor_(executor),
      context_(context),
      reaper_(reaper),
      options_(std::move(options)),
      groups_(options_.control_group_root),
      null_(::open("/dev/null", O_RDWR | O_CLOEXEC)),
      ended_changed_(executor),
      tasks_(executor) {
  reaper_.on_orphans([this] { groups_.sweep(); });
  tasks_.spawn("forget_ended_commands", forget_in_time());
}

asio::awaitable<void> ProcessService::close() {
  reaper_.on_orphans({});
  for (auto const& [pid, command] : running_)
    command->kill_tree();
  tasks_.cancel();
  co_await tasks_.join();
}

RpcKind ProcessService::kind_of(std::string_view method) const {
  for (auto const& row : methods) {
    if (row.name == method) return row.kind;
  }
  return RpcKind::unknown;
}

asio::awaitable<RpcResult<json::value>> ProcessService::unary(RpcCall call, json::value message) {
  auto const method = call.method;
  if (method == "List") co_return list();
  if (method == "SendInput")
    co_return empty_or(co_await send_input(std::move(call), std::move(message)));
  if (method == "SendSignal") co_return empty_or(co_await send_signal(std::move(message)));
  if (method == "Update") co_return empty_or(update(message));
  Fields fields(message);
  auto const command = find(fields);
  if (!command) co_return std::unexpected(command.error());
  co_return empty_or((*command)->close_input());
}

asio::awaitable<RpcResult<std::unique_ptr<MessageSource>>> ProcessService::open_stream(
    RpcCall call, json::value message) {
  if (call.method == "Start") {
    auto command = start(call, message);
    if (!command) co_return std::unexpected(std::move(command.error()));
    // From the first byte, whether or not the caller wants offsets: nothing has been written yet.
    auto kill = [command = *command] { command->kill_tree(); };
    co_return Command::listen(std::move(*command), call.replay_from, std::move(kill));
  }
  Fields fields(message);
  auto command = find(fields);
  if (!command) co_return std::unexpected(std::move(command.error()));
  if (call.replay_from.value_or(0) > (*command)->output_end()) {
    co_return rpc_fail(
        RpcCode::invalid_argument,
        fmt::format("X-Space-Replay: the output ends at {}", (*command)->output_end()));
  }
  co_return Command::listen(std::move(*command), call.replay_from, {});
}

json::value ProcessService::list() const {
  json::array processes;
  for (auto const& [pid, command] : running_) {
    if (command->exited()) continue;
    json::object one{{"config", command->description().config}, {"pid", pid}};
    if (auto const& tag = command->description().tag) one["tag"] = *tag;
    processes.push_back(std::move(one));
  }
  return json::object{{"processes", std::move(processes)}};
}

RpcResult<ProcessService::CommandRef> ProcessService::find(Fields& fields) {
  auto const* selector = fields.message("process");
  if (auto bad = fields.problem()) return std::unexpected(std::move(*bad));
  if (!selector) return rpc_fail(RpcCode::invalid_argument, "process: required");
  return selected(*selector);
}

RpcResult<ProcessService::CommandRef> ProcessService::selected(json::value const& selector) const {
  Fields fields(selector);
  auto const pid = fields.u32("pid");
  auto const tag = fields.optional_text("tag");
  if (auto bad = fields.problem()) return std::unexpected(std::move(*bad));
  if (pid == 0 && !tag)
    return rpc_fail(RpcCode::invalid_argument, "process: expected a pid or a tag");
  auto const wanted = [&](CommandRef const& command) {
    return pid != 0 ? static_cast<std::uint32_t>(command->pid()) == pid
                    : command->description().tag == tag;
  };
  for (auto const& [one, command] : running_) {
    if (wanted(command)) return command;
  }
  // The latest of those that have ended: pids come again.
  for (auto one = ended_.rbegin(); one != ended_.rend(); ++one) {
    if (wanted(one->command)) return one->command;
  }
  return rpc_fail(RpcCode::not_found,
                  pid != 0 ? fmt::format("process with pid {} not found", pid)
                           : fmt::format("process with tag {} not found", *tag));
}

asio::awaitable<RpcResult<void>> ProcessService::send_signal(json::value message) {
  Fields fields(message);
  auto const number = fields.enumerator("signal", signal_names());
  auto const found = find(fields);
  if (!found) co_return std::unexpected(found.error());
  auto const command = *found;
  if (number == 0)
    co_return rpc_fail(RpcCode::invalid_argument,
                       "signal: expected SIGNAL_SIGKILL or SIGNAL_SIGTERM");
  if (command->exited()) {
    co_return rpc_fail(RpcCode::not_found,
                       fmt::format("process with pid {} not found", command->pid()));
  }
  if (number != SIGKILL) co_return command->signal(number);
  command->kill_tree();
  // The caller may look for the pid as soon as it has our answer.
  auto exiting = command->wait_exit();
  auto const how = co_await async::run_until(now() + kill_wait, std::move(exiting));
  if (how == async::Ended::deadline) {
    co_return rpc_fail(RpcCode::internal,
                       fmt::format("process {} was killed but has not ended yet", command->pid()));
  }
  co_return RpcResult<void>();
}

RpcResult<void> ProcessService::update(json::value const& message) {
  Fields fields(message);
  auto const* pty = fields.message("pty");
  auto const command = find(fields);
  if (!command) return std::unexpected(command.error());
  if (!pty) return {};
  Fields pty_fields(*pty);
  auto const* size = pty_fields.message("size");
  if (auto bad = pty_fields.problem()) return std::unexpected(std::move(*bad));
  if (!size) return {};
  Fields size_fields(*size);
  auto const columns = size_fields.u32("cols");
  auto const rows = size_fields.u32("rows");
  if (auto bad = size_fields.problem()) return std::unexpected(std::move(*bad));
  return (*command)->resize(columns, rows);
}

RpcResult<ProcessService::Input> ProcessService::input_of(json::value const& message) {
  Fields fields(message);
  auto const* input = fields.message("input");
  if (auto bad = fields.problem()) return std::unexpected(std::move(*bad));
  if (!input) return rpc_fail(RpcCode::invalid_argument, "input: required");
  Fields kinds(*input);
  auto to_pipe = kinds.optional_bytes("stdin");
  auto to_terminal = kinds.optional_bytes("pty");
  if (auto bad = kinds.problem()) return std::unexpected(std::move(*bad));
  if (to_pipe && to_terminal)
    return rpc_fail(RpcCode::invalid_argument, "input: expected stdin or pty, not both");
  bool const for_terminal = to_terminal.has_value();
  return Input{for_terminal ? std::move(to_terminal) : std::move(to_pipe), for_terminal};
}

asio::awaitable<RpcResult<void>> ProcessService::write(
    CommandRef command, Input input, std::function<asio::awaitable<void>()> gone) {
  if (!input.bytes) co_return RpcResult<void>();
  if (input.for_terminal != command->has_terminal()) {
    co_return rpc_fail(RpcCode::failed_precondition,
                       input.for_terminal ? "the process has no terminal: send stdin"
                                          : "the process has a terminal: send pty input");
  }
  co_return co_await Command::write_input(
      std::move(command), std::move(*input.bytes), std::move(gone));
}

asio::awaitable<RpcResult<void>> ProcessService::send_input(RpcCall call, json::value message) {
  Fields fields(message);
  auto command = find(fields);
  if (!command) co_return std::unexpected(std::move(command.error()));
  auto input = input_of(message);
  if (!input) co_return std::unexpected(std::move(input.error()));
  co_return co_await write(std::move(*command), std::move(*input), std::move(call.caller_gone));
}

/// start, then data and keepalives in any order; each piece is in the command's input before the
/// next is read.
asio::awaitable<RpcResult<json::value>> ProcessService::client_stream(RpcCall,
                                                                      MessageReader& messages) {
  CommandRef command;
  for (;;) {
    auto message = co_await messages.next();
    if (!message) co_return std::unexpected(std::move(message.error()));
    if (!*message) co_return json::value(json::object());
    Fields fields(**message);
    auto const* begin = fields.message("start");
    auto const* data = fields.message("data");
    if (auto bad = fields.problem()) co_return std::unexpected(std::move(*bad));
    if (begin) {
      Fields begin_fields(*begin);
      auto found = find(begin_fields);
      if (!found) co_return std::unexpected(std::move(found.error()));
      command = std::move(*found);
    }
    if (!data) continue;
    if (!command)
      co_return rpc_fail(RpcCode::invalid_argument, "the first message has to be start");
    auto input = input_of(*data);
    if (!input) co_return std::unexpected(std::move(input.error()));
    auto written = co_await write(command, std::move(*input), {});
    if (!written) co_return std::unexpected(std::move(written.error()));
  }
}

void ProcessService::adopt(CommandRef command, std::optional<base::Deadline> deadline) {
  running_.insert_or_assign(command->pid(), command);
  reaper_.watch(command->pid(), [command](int status) { command->on_exit(status); });
  tasks_.spawn("command_output", Command::pump_output(command));
  if (!command->has_terminal()) tasks_.spawn("command_error_output", Command::pump_error(command));
  tasks_.spawn("command", supervise(std::move(command), deadline));
}

asio::awaitable<void> ProcessService::supervise(CommandRef command,
                                                std::optional<base::Deadline> deadline) {
  co_await Command::supervise(command, deadline);
  retire(command);
}

void ProcessService::retire(CommandRef const& command) {
  auto const place = running_.find(command->pid());
  // Its pid may belong to a later command already.
  if (place != running_.end() && place->second == command) running_.erase(place);
  groups_.retire(command->take_group());
  ended_.push_back({command, now() + ended_kept_for});
  forget_old();
  ended_changed_.notify_all();
}

void ProcessService::forget_old() {
  while (!ended_.empty() && (ended_.size() > ended_kept_max || ended_.front().until <= now())) {
    ended_.front().command->drop_output();
    ended_.pop_front();
  }
}

asio::awaitable<void> ProcessService::forget_in_time() {
  for (;;) {
    forget_old();
    if (ended_.empty()) {
      co_await ended_changed_.wait();
    } else {
      co_await async::sleep_until(ended_.front().until);
    }
  }
}

std::size_t ProcessService::logs_bytes() const {
  std::size_t sum = 0;
  for (auto const& [pid, command] : running_)
    sum += command->log_cost();
  for (auto const& one : ended_)
    sum += one.command->log_cost();
  return sum;
}

}  // namespace agent
