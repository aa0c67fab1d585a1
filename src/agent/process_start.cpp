#include "agent/machine.hpp"
#include "agent/path.hpp"
#include "agent/process_service.hpp"
#include "agent/terminal.hpp"
#include "base/fault.hpp"
#include "base/log.hpp"

#include <cerrno>
#include <cstring>

#include <boost/json/array.hpp>
#include <fcntl.h>
#include <unistd.h>

/// Start: from the request to a running command.
namespace agent {
namespace {

constexpr std::string_view default_path =
    "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

struct Pipe {
  os::Fd read;
  os::Fd write;
};

RpcResult<Pipe> make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    return rpc_fail(RpcCode::resource_exhausted,
                    fmt::format("no pipe for the process: {}", std::strerror(errno)));
  }
  return Pipe{os::Fd(ends[0]), os::Fd(ends[1])};
}

/// The failure in the words of the hosted service where clients see them.
RpcError error_of(SpawnFailure failure, SpawnPlan const& plan) {
  auto const& program = plan.argv.front();
  std::string const why = std::strerror(failure.error_number);
  switch (failure.stage) {
    case SpawnStage::fork:
      return {RpcCode::resource_exhausted, "no process could be made: " + why};
    case SpawnStage::directory:
      if (failure.error_number == ENOENT) {
        return {RpcCode::invalid_argument, fmt::format("cwd '{}' does not exist", plan.cwd)};
      }
      return {RpcCode::invalid_argument, fmt::format("cwd '{}' cannot be used: {}", plan.cwd, why)};
    case SpawnStage::exec:
      if (failure.error_number == ENOENT && program.find('/') == std::string::npos) {
        return {
            RpcCode::invalid_argument,
            fmt::format("error starting process: exec: \"{}\": executable file not found in $PATH",
                        program)};
      }
      return {RpcCode::invalid_argument,
              fmt::format("error starting process: {}: {}", program, why)};
    case SpawnStage::none:
    case SpawnStage::control_group:
    case SpawnStage::session:
    case SpawnStage::terminal:
    case SpawnStage::descriptors:
    case SpawnStage::identity:
      break;
  }
  return {RpcCode::internal, "the process could not be prepared: " + why};
}

void set(std::vector<std::string>& env, std::string_view name, std::string_view value) {
  auto text = fmt::format("{}={}", name, value);
  auto const head = std::string_view(text).substr(0, name.size() + 1);
  auto const old =
      std::ranges::find_if(env, [&](std::string const& one) { return one.starts_with(head); });
  if (old != env.end()) {
    *old = std::move(text);
  } else {
    env.push_back(std::move(text));
  }
}

}  // namespace

struct ProcessService::Start {
  std::string program;
  std::vector<std::string> arguments;
  std::vector<std::pair<std::string, std::string>> env;
  std::optional<std::string> cwd;
  std::optional<std::string> tag;
  bool with_input = true;
  std::optional<TerminalSize> terminal;
  std::optional<std::string> username;  // nothing: the default one
  std::optional<base::Deadline> deadline;
};

RpcResult<ProcessService::CommandRef> ProcessService::start(RpcCall const& call,
                                                            json::value const& message) {
  Start start;
  Fields fields(message);
  auto const* process = fields.message("process");
  auto const* pty = fields.message("pty");
  start.tag = fields.optional_text("tag");
  // Absent means yes; so callers that never heard of it get a process they can write to.
  start.with_input = fields.optional_boolean("stdin").value_or(true);
  if (auto bad = fields.problem()) return std::unexpected(std::move(*bad));
  if (!process) return rpc_fail(RpcCode::invalid_argument, "process: required");
  Fields config(*process);
  start.program = config.text("cmd");
  start.arguments = config.texts("args");
  start.env = config.text_map("envs");
  start.cwd = config.optional_text("cwd");
  if (auto bad = config.problem()) return std::unexpected(std::move(*bad));
  if (start.program.empty()) return rpc_fail(RpcCode::invalid_argument, "process.cmd: required");
  for (auto const& [name, value] : start.env) {
    if (name.empty() || name.find('=') != std::string::npos) {
      return rpc_fail(RpcCode::invalid_argument,
                      fmt::format("process.envs: '{}' is no name of a variable", name));
    }
  }
  if (pty) {
    start.terminal.emplace();
    Fields pty_fields(*pty);
    if (auto const* size = pty_fields.message("size")) {
      Fields size_fields(*size);
      auto const columns = size_fields.u32("cols");
      auto const rows = size_fields.u32("rows");
      if (auto bad = size_fields.problem()) return std::unexpected(std::move(*bad));
      if (columns > 0) start.terminal->columns = columns;
      if (rows > 0) start.terminal->rows = rows;
    }
    if (auto bad = pty_fields.problem()) return std::unexpected(std::move(*bad));
  }
  start.username = call.username;
  start.deadline = call.deadline;
  return launch(std::move(start));
}

/// By which libraries that bring authorities of their own are told of the guest's.
constexpr std::string_view trust_variables[] = {"SSL_CERT_FILE",
                                                "REQUESTS_CA_BUNDLE",
                                                "CURL_CA_BUNDLE",
                                                "NODE_EXTRA_CA_CERTS",
                                                "PIP_CERT",
                                                "GIT_SSL_CAINFO",
                                                "AWS_CA_BUNDLE",
                                                "DENO_CERT"};

/// Last wins: what the agent knows of the user, the sandbox's variables, the request's.
std::vector<std::string> ProcessService::environment_of(Start const& start,
                                                        User const& user) const {
  std::vector<std::string> env;
  env.reserve(8 + context_.env.size() + start.env.size());
  set(env, "PATH", default_path);
  set(env, "HOME", user.home);
  set(env, "USER", user.name);
  set(env, "LOGNAME", user.name);
  if (start.terminal) {
    // A terminal without these draws no line of a full-screen program right.
    set(env, "TERM", "xterm-256color");
    set(env, "LANG", "C.UTF-8");
  }
  if (context_.trusts_gateway) {
    for (auto const name : trust_variables)
      set(env, name, trusted_bundle);
  }
  for (auto const& [name, value] : context_.env)
    set(env, name, value);
  for (auto const& [name, value] : start.env)
    set(env, name, value);
  return env;
}

RpcResult<SpawnPlan> ProcessService::plan_of(Start const& start, User const& user) const {
  SpawnPlan plan;
  plan.argv.push_back(start.program);
  plan.argv.insert(plan.argv.end(), start.arguments.begin(), start.arguments.end());
  plan.env = environment_of(start, user);
  auto cwd = resolve_path(start.cwd.value_or(""), user, context_.default_workdir);
  if (!cwd) return std::unexpected(rpc_error_of(cwd.error()));
  plan.cwd = std::move(*cwd);
  // System users have homes that were never made. Who asked for a directory by name is told; who
  // did not, is better off with the root than with an error about a directory he never mentioned.
  bool const asked = start.cwd && !start.cwd->empty();
  if (!asked && context_.default_workdir.empty() && ::access(plan.cwd.c_str(), F_OK) != 0)
    plan.cwd = "/";
  plan.uid = user.uid;
  plan.gid = user.gid;
  plan.groups = user.groups;
  plan.reset_oom_score = options_.reset_oom_score;
  plan.reset_real_time = options_.reset_real_time;
  return plan;
}

RpcResult<ProcessService::CommandRef> ProcessService::launch(Start start) {
  if (running_.size() >= commands_max) {
    return rpc_fail(RpcCode::resource_exhausted,
                    fmt::format("{} commands run already", running_.size()));
  }
  if (SPACE_FAULT("agent.command.spawn")) return rpc_fail(RpcCode::internal, "fault point");
  auto const user = find_caller(context_.etc_dir, start.username, context_.default_user);
  if (!user) return std::unexpected(rpc_error_of(user.error()));
  auto plan = plan_of(start, *user);
  if (!plan) return std::unexpected(std::move(plan.error()));

  // Their ends: closed when this returns. Ours go into the command.
  Command::Pipes ours;
  os::Fd input;
  os::Fd output;
  os::Fd error;
  if (start.terminal) {
    auto terminal = open_terminal(*start.terminal, user->uid);
    if (!terminal) return std::unexpected(rpc_error_of(terminal.error()));
    ours.terminal = std::move(terminal->master);
    input = std::move(terminal->slave);
    plan->terminal = true;
    plan->input = plan->output = plan->error = input.get();
  } else {
    auto out = make_pipe();
    auto err = make_pipe();
    auto in = start.with_input ? make_pipe() : Pipe{};
    if (!out || !err || !in)
      return rpc_fail(RpcCode::resource_exhausted, "no pipe for the process: too many are open");
    ours.output = std::move(out->read);
    ours.error = std::move(err->read);
    ours.input = std::move(in->write);
    input = std::move(in->read);
    output = std::move(out->write);
    error = std::move(err->write);
    plan->input = input ? input.get() : null_.get();
    plan->output = output.get();
    plan->error = error.get();
  }
  auto group = groups_.make();
  plan->control_group = group.directory();
  auto const made = spawn(*plan);
  if (auto const* failure = std::get_if<SpawnFailure>(&made)) {
    groups_.retire(std::move(group));
    return std::unexpected(error_of(*failure, *plan));
  }

  Command::Description description;
  json::array arguments(start.arguments.begin(), start.arguments.end());
  json::object env;
  for (auto const& [name, value] : start.env)
    env[name] = value;
  description.config = {
      {"cmd", start.program}, {"args", std::move(arguments)}, {"envs", std::move(env)}};
  if (start.cwd) description.config["cwd"] = *start.cwd;
  description.tag = std::move(start.tag);
  Command::Limits limits;
  limits.log_bytes_max = logs_bytes() > logs_bytes_soft_max ? small_log_bytes_max : log_bytes_max;
  limits.stall_max = options_.stall_max;
  auto command = std::make_shared<Command>(executor_,
                                           std::get<pid_t>(made),
                                           std::move(description),
                                           std::move(ours),
                                           std::move(group),
                                           limits);
  adopt(command, start.deadline);
  return command;
}

}  // namespace agent
