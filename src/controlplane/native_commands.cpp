#include "base/base64.hpp"
#include "base/id.hpp"
#include "controlplane/native.hpp"
#include "domain/labels.hpp"

#include <charconv>

namespace controlplane {
namespace {

using base::Code;

constexpr std::size_t shown_output_max = 1 << 20;  // of each stream, in an answer with `wait`
constexpr std::size_t data_max = 1 << 20;
constexpr std::chrono::milliseconds cut_patience{1500};

struct PtySize {
  std::uint16_t cols = 0;
  std::uint16_t rows = 0;

  static bool required(std::string_view) { return true; }

  std::string check() const {
    return cols == 0 || rows == 0 ? "cols and rows: expected 1 to 65535" : std::string();
  }
};
BOOST_DESCRIBE_STRUCT(PtySize, (), (cols, rows))

struct StartBody {
  std::optional<std::vector<std::string>> argv;
  std::optional<std::string> shell;
  std::map<std::string, std::string> env;
  std::string cwd;
  std::string user;
  bool stdin_ = false;
  std::optional<PtySize> pty;
  double timeout_s = 0;
};
BOOST_DESCRIBE_STRUCT(StartBody, (), (argv, shell, env, cwd, user, pty, timeout_s))

struct SignalBody {
  std::string signal;

  static bool required(std::string_view) { return true; }
};
BOOST_DESCRIBE_STRUCT(SignalBody, (), (signal))

bool has_nul(std::string_view text) {
  return text.find('\0') != std::string_view::npos;
}

/// `stdin` is a macro in C; it is taken out of the object first.
base::Result<StartBody> decode_start(Call const& call) {
  auto value = body_of(call);
  if (!value) return base::passing(value);
  bool wants_stdin = false;
  if (auto* object = value->if_object()) {
    if (auto const* flag = object->if_contains("stdin")) {
      if (!flag->is_bool()) return base::fail(Code::invalid_argument, "stdin: expected a boolean");
      wants_stdin = flag->get_bool();
      object->erase("stdin");
    }
  }
  auto body = wire::decode<StartBody>(*value);
  if (!body) return body;
  body->stdin_ = wants_stdin;
  if (body->argv.has_value() == body->shell.has_value()) {
    return base::fail(Code::invalid_argument, "argv, shell: expected exactly one of them");
  }
  if (body->argv &&
      (body->argv->empty() || body->argv->front().empty() || body->argv->size() > 1024)) {
    return base::fail(Code::invalid_argument,
                      "argv: expected 1 to 1024 strings, the first of them a program");
  }
  bool bad = has_nul(body->cwd) || has_nul(body->user) || (body->shell && has_nul(*body->shell));
  if (body->argv) bad |= std::ranges::any_of(*body->argv, has_nul);
  if (bad)
    return base::fail(Code::invalid_argument,
                      "argv, shell, cwd, user: a NUL byte cannot be part of them");
  // Names of users go into a header as user:password.
  if (body->user.size() > 256 || body->user.find(':') != std::string::npos) {
    return base::fail(Code::invalid_argument, "user: expected the name of a user");
  }
  if (!(body->timeout_s >= 0 && body->timeout_s <= 30.0 * 86'400)) {
    return base::fail(Code::invalid_argument, "timeout_s: expected 0 (none) to 2592000 seconds");
  }
  if (auto ok = domain::check_environment(body->env, "env"); !ok) return base::passing(ok);
  return body;
}

GuestCall start_call(StartBody const& body, std::string const& tag) {
  json::array arguments;
  std::string program = "/bin/bash";
  if (body.shell) {
    arguments = {"-l", "-c", *body.shell};
  } else {
    program = body.argv->front();
    for (std::size_t i = 1; i < body.argv->size(); ++i)
      arguments.emplace_back((*body.argv)[i]);
  }
  json::object env;
  if (body.pty) env = {{"TERM", "xterm-256color"}, {"LANG", "C.UTF-8"}, {"LC_ALL", "C.UTF-8"}};
  for (auto const& [name, value] : body.env)
    env[name] = value;
  json::object process{{"cmd", program}, {"args", std::move(arguments)}, {"envs", std::move(env)}};
  if (!body.cwd.empty()) process["cwd"] = body.cwd;
  json::object message{{"process", std::move(process)}, {"tag", tag}};
  if (body.pty) {
    message["pty"] =
        json::object{{"size", json::object{{"cols", body.pty->cols}, {"rows", body.pty->rows}}}};
  } else {
    message["stdin"] = body.stdin_;
  }
  GuestCall call;
  call.method = "process.Process/Start";
  call.message = std::move(message);
  call.user = body.user;
  if (body.timeout_s > 0) {
    call.timeout = std::chrono::milliseconds(
        std::max<std::int64_t>(1, static_cast<std::int64_t>(body.timeout_s * 1000)));
  }
  return call;
}

/// A command's id is the tag that we gave it, or the pid for commands of other clients.
base::Result<json::object> selector_of(std::string_view id) {
  if (base::is_short_id('c', id)) return json::object{{"tag", id}};
  std::uint32_t pid = 0;
  auto const [end, error] = std::from_chars(id.data(), id.data() + id.size(), pid);
  if (error == std::errc() && end == id.data() + id.size() && pid > 0 && id.front() != '0')
    return json::object{{"pid", pid}};
  return base::fail(Code::not_found, fmt::format("there is no command \"{}\"", id.substr(0, 60)));
}

/// One event of a command, taken apart and checked.
struct Happened {
  enum class Kind : std::uint8_t { nothing, start, output, gap, end } kind = Kind::nothing;
  std::uint32_t pid = 0;
  std::string stream;  // stdout, stderr, pty
  std::string bytes;
  std::optional<std::uint64_t> offset;  // of the first byte
  std::uint64_t gap_bytes = 0;
  std::int32_t exit_code = 0;
  bool exited = false;
  std::string status, error;
};

json::object const* object_in(json::object const& object, std::string_view name) {
  auto const* value = object.if_contains(name);
  return value ? value->if_object() : nullptr;
}

std::optional<std::uint64_t> number_in(json::object const& object, std::string_view name) {
  auto const* value = object.if_contains(name);
  if (!value) return std::nullopt;
  boost::system::error_code error;
  if (auto const* text = value->if_string()) {
    std::uint64_t number = 0;
    auto const [end, bad] = std::from_chars(text->data(), text->data() + text->size(), number);
    if (bad != std::errc() || end != text->data() + text->size()) return std::nullopt;
    return number;
  }
  auto const number = value->is_number() ? value->to_number<std::uint64_t>(error) : 0;
  if (!value->is_number() || error) return std::nullopt;
  return number;
}

std::string text_in(json::object const& object, std::string_view name) {
  auto const* value = object.if_contains(name);
  auto const* text = value ? value->if_string() : nullptr;
  return text ? printable(*text, 300) : std::string();
}

base::Result<Happened> output_of(json::object const& data) {
  Happened happened;
  happened.kind = Happened::Kind::output;
  for (auto const* stream : {"stdout", "stderr", "pty"}) {
    auto const* value = data.if_contains(stream);
    if (!value || !value->is_string()) continue;
    auto bytes = base::base64_decoded(value->get_string());
    if (!bytes || bytes->size() > data_max) break;
    happened.stream = stream;
    happened.bytes = std::move(*bytes);
    happened.offset = number_in(data, "offset");
    return happened;
  }
  return base::fail(Code::unavailable, "the sandbox sent output that cannot be read");
}

base::Result<Happened> happened_in(json::object const& message) {
  Happened happened;
  auto const* event = object_in(message, "event");
  if (!event) return base::fail(Code::unavailable, "the sandbox sent something that is no event");
  if (auto const* data = object_in(*event, "data")) return output_of(*data);
  if (auto const* start = object_in(*event, "start")) {
    happened.kind = Happened::Kind::start;
    auto const pid = number_in(*start, "pid").value_or(0);
    if (pid == 0 || pid > std::numeric_limits<std::uint32_t>::max())
      return base::fail(Code::unavailable, "the sandbox named no pid");
    happened.pid = static_cast<std::uint32_t>(pid);
  } else if (auto const* gap = object_in(*event, "gap")) {
    happened.kind = Happened::Kind::gap;
    happened.gap_bytes = number_in(*gap, "bytes").value_or(0);
  } else if (auto const* end = object_in(*event, "end")) {
    happened.kind = Happened::Kind::end;
    auto const* code = end->if_contains("exitCode");
    if (code && code->is_int64())
      happened.exit_code =
          static_cast<std::int32_t>(std::clamp<std::int64_t>(code->get_int64(), -1, 255));
    auto const* exited = end->if_contains("exited");
    happened.exited = exited && exited->is_bool() && exited->get_bool();
    happened.status = text_in(*end, "status");
    happened.error = text_in(*end, "error");
  }
  return happened;
}

/// The next thing that matters; nothing at a proper end of the stream.
async::Task<std::optional<Happened>> next_of(GuestStream& stream) {
  for (;;) {
    auto message = co_await stream.next();
    if (!message) co_return base::passing(message);
    if (!*message) co_return std::optional<Happened>();
    auto happened = happened_in(**message);
    if (!happened) co_return base::passing(happened);
    if (happened->kind != Happened::Kind::nothing) co_return std::optional(std::move(*happened));
  }
}

void add_end(json::object& view, Happened const& end) {
  view["state"] = "ended";
  view["exit_code"] = end.exit_code;
  if (!end.status.empty()) view["status"] = end.status;
  if (!end.error.empty()) view["error"] = end.error;
}

/// Output for a JSON answer: valid UTF-8, else the broken bytes replaced.
std::string as_text(std::string const& bytes) {
  if (domain::is_utf8(bytes)) return bytes;
  std::string out;
  for (std::size_t i = 0; i < bytes.size();) {
    std::size_t length = 1;
    while (length < 4 && i + length <= bytes.size() &&
           !domain::is_utf8(std::string_view(bytes).substr(i, length)))
      ++length;
    bool const good =
        i + length <= bytes.size() && domain::is_utf8(std::string_view(bytes).substr(i, length));
    if (good) {
      out.append(bytes, i, length);
      i += length;
    } else {
      out += "\xEF\xBF\xBD";
      ++i;
    }
  }
  return out;
}

/// What a command wrote and how it ended, as far as it went.
struct Collected {
  std::map<std::string, std::string> output;
  bool truncated = false;
  std::optional<Happened> end;
  base::Result<void> outcome;
};

asio::awaitable<void> collect(GuestStream& stream, Collected& into) {
  for (;;) {
    auto happened = co_await next_of(stream);
    if (!happened) {
      into.outcome = base::passing(happened);
      co_return;
    }
    if (!*happened) co_return;
    auto& one = **happened;
    if (one.kind == Happened::Kind::output) {
      auto& text = into.output[one.stream];
      auto const room = shown_output_max - std::min(shown_output_max, text.size());
      into.truncated |= one.bytes.size() > room;
      text.append(one.bytes, 0, room);
    } else if (one.kind == Happened::Kind::gap) {
      into.truncated = true;
    } else if (one.kind == Happened::Kind::end) {
      into.end = std::move(one);
    }
  }
}

}  // namespace

async::Task<Reply> Native::start_command(Call& call) {
  auto target = co_await guest_of(call);
  if (!target) co_return base::passing(target);
  if (auto ok = call.allow_query({"wait"}); !ok) co_return base::passing(ok);
  auto const wait = wait_of(call, options_.wait_max);
  if (!wait) co_return std::unexpected(wait.error());
  auto body = decode_start(call);
  if (!body) co_return base::passing(body);
  auto const tag = base::make_short_id('c');
  auto const sandbox = target->sandbox;
  call.may_have_happened = true;
  auto stream = co_await guests_.stream(std::move(*target), start_call(*body, tag), call.deadline);
  if (!stream) co_return base::passing(stream);
  auto starting = next_of(**stream);
  auto first = co_await async::with_deadline(call.deadline, std::move(starting));
  if (!first) co_return base::passing(first);
  if (!*first || (*first)->kind != Happened::Kind::start) {
    co_return base::fail(Code::unavailable, "the sandbox did not say that the command was started");
  }
  json::object view{{"id", tag}, {"pid", (*first)->pid}, {"state", "running"}};
  if (wait->count() > 0) {
    Collected collected;
    auto collecting = collect(**stream, collected);
    co_await async::run_until(base::system_clock().in(*wait), std::move(collecting));
    if (!collected.outcome && !collected.end &&
        collected.outcome.error().code() == Code::unavailable) {
      auto cut = co_await why_cut(call.owner.project_id, sandbox);
      if (!cut) co_return base::passing(cut);
    }
    if (!collected.outcome && !collected.end &&
        collected.outcome.error().code() != Code::deadline_exceeded) {
      co_return base::passing(collected.outcome);
    }
    for (auto const& [name, bytes] : collected.output)
      view[name] = as_text(bytes);
    if (collected.truncated) view["truncated"] = true;
    if (collected.end) add_end(view, *collected.end);
    // Its own timeout: the guest killed it, and the stream said so instead of an end.
    if (!collected.outcome && !collected.end) {
      Happened killed;
      killed.exit_code = -1;
      killed.status = "signal: killed";
      killed.error = "its timeout was over";
      add_end(view, killed);
    }
  }
  co_return json_reply(201, view);
}

async::Task<Reply> Native::list_commands(Call& call) {
  auto target = co_await guest_of(call);
  if (!target) co_return base::passing(target);
  if (auto ok = call.allow_query({}); !ok) co_return base::passing(ok);
  GuestCall list;
  list.method = "process.Process/List";
  list.message = json::object();
  auto answer = co_await guests_.unary(std::move(*target), std::move(list), call.deadline);
  if (!answer) co_return base::passing(answer);
  json::array commands;
  auto const* processes = answer->if_contains("processes");
  if (processes && processes->is_array()) {
    for (auto const& one : processes->get_array()) {
      if (auto const* object = one.if_object()) {
        auto view = command_view(*object);
        if (!view.empty()) commands.push_back(std::move(view));
      }
    }
  }
  co_return json_reply(200, json::object{{"commands", std::move(commands)}});
}

/// {} for what is no process.
json::object Native::command_view(json::object const& process) {
  auto const pid = number_in(process, "pid").value_or(0);
  if (pid == 0) return {};
  auto const tag = text_in(process, "tag");
  json::object view{{"id", base::is_short_id('c', tag) ? tag : std::to_string(pid)},
                    {"pid", pid},
                    {"state", "running"}};
  if (auto const* config = object_in(process, "config")) {
    json::array argv{text_in(*config, "cmd")};
    auto const* arguments = config->if_contains("args");
    if (arguments && arguments->is_array()) {
      for (auto const& one : arguments->get_array()) {
        if (auto const* text = one.if_string()) argv.emplace_back(printable(*text, 4096));
      }
    }
    view["argv"] = std::move(argv);
    auto const cwd = text_in(*config, "cwd");
    if (!cwd.empty()) view["cwd"] = cwd;
  }
  return view;
}

async::Task<Reply> Native::get_command(Call& call) {
  auto target = co_await guest_of(call);
  if (!target) co_return base::passing(target);
  auto selector = selector_of(call.param("command"));
  if (!selector) co_return base::passing(selector);
  if (auto ok = call.allow_query({}); !ok) co_return base::passing(ok);
  GuestCall list;
  list.method = "process.Process/List";
  list.message = json::object();
  auto answer = co_await guests_.unary(*target, std::move(list), call.deadline);
  if (!answer) co_return base::passing(answer);
  auto const* processes = answer->if_contains("processes");
  if (processes && processes->is_array()) {
    for (auto const& one : processes->get_array()) {
      auto const* object = one.if_object();
      auto view = object ? command_view(*object) : json::object();
      if (view.empty()) continue;
      if (view["id"].get_string() == call.param("command") ||
          std::to_string(view["pid"].to_number<std::uint64_t>()) == call.param("command")) {
        co_return json_reply(200, view);
      }
    }
  }
  // Not running: the agent may still know how it ended.
  GuestCall connect;
  connect.method = "process.Process/Connect";
  connect.message = json::object{{"process", std::move(*selector)}};
  auto stream = co_await guests_.stream(std::move(*target), std::move(connect), call.deadline);
  if (!stream) co_return base::passing(stream);
  json::object view{{"id", call.param("command")}, {"pid", 0}, {"state", "running"}};
  for (;;) {
    auto stepping = next_of(**stream);
    auto happened = co_await async::with_deadline(call.deadline, std::move(stepping));
    if (!happened) co_return base::passing(happened);
    if (!*happened) break;
    if ((*happened)->kind == Happened::Kind::start) view["pid"] = (*happened)->pid;
    if ((*happened)->kind == Happened::Kind::end) add_end(view, **happened);
  }
  co_return json_reply(200, view);
}

async::Task<Reply> Native::stream_command_output(Call& call) {
  auto target = co_await guest_of(call);
  if (!target) co_return base::passing(target);
  auto selector = selector_of(call.param("command"));
  if (!selector) co_return base::passing(selector);
  if (auto ok = call.allow_query({"from"}); !ok) co_return base::passing(ok);
  GuestCall connect;
  connect.method = "process.Process/Connect";
  connect.message = json::object{{"process", std::move(*selector)}};
  auto const header = call.request.head.headers.find("last-event-id");
  auto const from = header ? std::string(*header) : call.query_value("from").value_or("0");
  if (from != "now") {
    std::uint64_t offset = 0;
    auto const [end, error] = std::from_chars(from.data(), from.data() + from.size(), offset);
    if (error != std::errc() || end != from.data() + from.size()) {
      co_return base::fail(Code::invalid_argument,
                           "Last-Event-ID, from: expected a byte offset, or from=now");
    }
    connect.replay_from = offset;
  }
  auto const sandbox = target->sandbox;
  auto stream = co_await guests_.stream(std::move(*target), std::move(connect), call.deadline);
  if (!stream) co_return base::passing(stream);
  // An unknown command is an error of the stream; wait for its first word, so that it becomes a
  // status.
  auto starting = next_of(**stream);
  auto first = co_await async::with_deadline(call.deadline, std::move(starting));
  if (!first) co_return base::passing(first);
  if (!*first || (*first)->kind != Happened::Kind::start) {
    co_return base::fail(Code::unavailable, "the sandbox did not answer as a command should");
  }
  auto begun = co_await begin_events(call);
  if (!begun) co_return base::passing(begun);
  if (is_head_only(call)) co_return co_await finish_stream(call);
  auto told = co_await http::sse_event(
      call.response, {}, "start", wire::to_text(json::object{{"pid", (*first)->pid}}));
  if (!told) co_return base::passing(told);
  auto relaying = relay_output(call, std::move(*stream), sandbox);
  auto gone = call.response.wait_client_gone();
  co_await async::race(std::move(relaying), std::move(gone));
  co_return streamed_reply();
}

asio::awaitable<void> Native::relay_output(Call& call,
                                           std::unique_ptr<GuestStream> stream,
                                           std::string sandbox) {
  for (;;) {
    auto message = co_await stream->next();
    base::Result<Happened> happened;
    if (message && !*message) co_return;
    if (message) {
      happened = happened_in(**message);
    } else {
      happened = base::passing(message);
    }
    base::Result<void> sent;
    if (!happened) {
      auto error = std::move(happened.error());
      if (error.code() == Code::unavailable) {
        auto why = co_await why_cut(call.owner.project_id, sandbox);
        if (!why) error = std::move(why.error());
      }
      json::object const body{{"code", base::name_of(error.code())}, {"message", error.message()}};
      (void)(co_await http::sse_event(call.response, {}, "error", wire::to_text(body))).has_value();
      co_return;
    }
    switch (happened->kind) {
      case Happened::Kind::nothing:
        sent = co_await http::sse_comment(call.response, "alive");
        break;
      case Happened::Kind::start:
        break;
      case Happened::Kind::output: {
        std::string id;
        if (happened->offset) id = std::to_string(*happened->offset + happened->bytes.size());
        auto const body = json::object{{"data", base::base64_of(happened->bytes)}};
        sent = co_await http::sse_event(
            call.response, std::move(id), happened->stream, wire::to_text(body));
        break;
      }
      case Happened::Kind::gap:
        sent = co_await http::sse_event(
            call.response, {}, "gap", wire::to_text(json::object{{"bytes", happened->gap_bytes}}));
        break;
      case Happened::Kind::end: {
        json::object const body{{"exit_code", happened->exit_code},
                                {"exited", happened->exited},
                                {"status", happened->status},
                                {"error", happened->error}};
        sent = co_await http::sse_event(call.response, {}, "end", wire::to_text(body));
        break;
      }
    }
    if (!sent) co_return;
  }
}

/// A stream that was cut says little; the sandbox's row says why, a moment later at most. Success
/// when the sandbox goes on.
async::Task<void> Native::why_cut(std::string project_id, std::string sandbox) {
  auto const until = base::system_clock().in(cut_patience);
  for (;;) {
    auto row = co_await store_.sandboxes.find(
        project_id, sandbox, base::system_clock().in(std::chrono::seconds(2)));
    if (!row) co_return base::passing(row);
    if (!*row) co_return base::fail(Code::not_found, "the sandbox is gone");
    if (domain::is_terminal((*row)->state) || (*row)->state == domain::SandboxState::deleting) {
      auto const reason =
          domain::reason_named((*row)->end_reason).value_or(domain::EndReason::unknown);
      co_return base::fail(Code::unavailable,
                           fmt::format("the sandbox ended: {}", domain::sentence_of(reason)));
    }
    if (base::system_clock().steady_now() >= until) co_return base::Result<void>();
    co_await async::sleep_for(std::chrono::milliseconds(100));
  }
}

async::Task<Reply> Native::write_command_stdin(Call& call) {
  auto target = co_await guest_of(call);
  if (!target) co_return base::passing(target);
  auto selector = selector_of(call.param("command"));
  if (!selector) co_return base::passing(selector);
  if (auto ok = call.allow_query({}); !ok) co_return base::passing(ok);
  auto const bytes = base::base64_of(call.body);
  call.may_have_happened = true;
  base::Result<json::object> answer;
  // Only the agent knows whether it has a terminal.
  for (auto const* kind : {"stdin", "pty"}) {
    GuestCall write;
    write.method = "process.Process/SendInput";
    write.message = json::object{{"process", *selector}, {"input", json::object{{kind, bytes}}}};
    answer = co_await guests_.unary(*target, std::move(write), call.deadline);
    if (answer || answer.error().detail() != "guest: failed_precondition") break;
  }
  if (!answer) co_return base::passing(answer);
  co_return empty_reply(204);
}

async::Task<Reply> Native::close_command_stdin(Call& call) {
  return tell_command(call, "process.Process/CloseStdin", json::object());
}

async::Task<Reply> Native::signal_command(Call& call) {
  auto known = co_await guest_of(call);
  if (!known) co_return base::passing(known);
  auto body = decode_body<SignalBody>(call);
  if (!body) co_return base::passing(body);
  if (body->signal != "TERM" && body->signal != "KILL") {
    co_return base::fail(Code::invalid_argument, "signal: expected TERM or KILL");
  }
  auto reply = co_await tell_command(
      call, "process.Process/SendSignal", json::object{{"signal", "SIGNAL_SIG" + body->signal}});
  co_return reply;
}

async::Task<Reply> Native::resize_command(Call& call) {
  auto known = co_await guest_of(call);
  if (!known) co_return base::passing(known);
  auto body = decode_body<PtySize>(call);
  if (!body) co_return base::passing(body);
  json::object const size{{"cols", body->cols}, {"rows", body->rows}};
  auto reply = co_await tell_command(
      call, "process.Process/Update", json::object{{"pty", json::object{{"size", size}}}});
  co_return reply;
}

async::Task<Reply> Native::tell_command(Call& call, std::string method, json::object message) {
  auto target = co_await guest_of(call);
  if (!target) co_return base::passing(target);
  auto selector = selector_of(call.param("command"));
  if (!selector) co_return base::passing(selector);
  if (auto ok = call.allow_query({}); !ok) co_return base::passing(ok);
  message["process"] = std::move(*selector);
  GuestCall tell;
  tell.method = std::move(method);
  tell.message = std::move(message);
  auto answer = co_await guests_.unary(std::move(*target), std::move(tell), call.deadline);
  if (!answer) co_return base::passing(answer);
  co_return empty_reply(204);
}

}  // namespace controlplane
