#include "base/base64.hpp"
#include "cli/command_stream.hpp"
#include "cli/terminal.hpp"
#include "cli/verbs.hpp"
#include "domain/labels.hpp"

#include <sys/stat.h>

#include <csignal>
#include <cstdlib>

#include <boost/asio/this_coro.hpp>
#include <unistd.h>

namespace cli {
namespace {

constexpr std::size_t input_chunk = 65536;
constexpr std::chrono::milliseconds clock_slack{100};
constexpr int killed = 128 + SIGKILL;
// What shells say of a program that they could not start.
constexpr int not_executable = 126;
constexpr int no_such_program = 127;

/// A pipe, a file or a socket on stdin is meant for the command; a terminal (without --tty) or
/// /dev/null is not.
bool input_is_for_the_command() {
  struct stat status{};
  if (fstat(0, &status) != 0 || isatty(0) == 1) return false;
  struct stat null_device{};
  return stat("/dev/null", &null_device) != 0 || !S_ISCHR(status.st_mode) ||
         status.st_rdev != null_device.st_rdev;
}

base::Result<json::object> request_of(ExecOptions const& options) {
  json::object request;
  json::array words;
  for (auto const& word : options.arguments)
    words.emplace_back(word);
  request["argv"] = std::move(words);
  if (!options.env.empty()) {
    auto env = parse_pairs(options.env, "env");
    if (!env) return base::passing(env);
    request["env"] = std::move(*env);
  }
  if (!options.cwd.empty()) request["cwd"] = options.cwd;
  if (!options.user.empty()) request["user"] = options.user;
  if (!options.timeout.empty()) {
    auto seconds = parse_duration(options.timeout);
    if (!seconds) return base::passing(seconds);
    request["timeout_s"] = *seconds;
  }
  return request;
}

std::string_view next_step_for(base::Error const& error) {
  if (error.code() == base::Code::not_found) return "See what there is: space sandbox list";
  if (error.code() == base::Code::unavailable) return "What is wrong: space doctor";
  return {};
}

/// A command in the sandbox and this process's stdin, stdout, stderr and signals, tied together.
class Attached {
 public:
  /// Before the process has threads: they would take the signals.
  Attached(Session session, std::string sandbox, std::initializer_list<int> signals)
      : session_(session), command_(session.api, std::move(sandbox)), signals_(signals) {}

  async::Task<void> start(json::object request) { return command_.start(std::move(request)); }

  /// Output until the command's end; its exit code.
  asio::awaitable<int> follow();

  asio::awaitable<void> follow_into(int* code) { *code = co_await follow(); }

  /// Everything on stdin, then the end of it. What the command no longer wants is no failure of
  /// ours.
  asio::awaitable<void> feed();
  /// The keys of a raw terminal. Enter, ~, . leaves, also when the sandbox no longer answers.
  asio::awaitable<void> feed_keys();
  /// ctrl-c asks the command to end; the second time it is killed. A new window size is passed on.
  asio::awaitable<void> pass_signals();
  asio::awaitable<void> kill();

 private:
  Session session_;
  RemoteCommand command_;
  SignalReader signals_;
};

/// With --json a line for each piece: bytes that are no text come in base64, so that none is lost.
json::object piece_of(std::string_view kind, std::string_view bytes) {
  json::object piece{{"stream", kind}};
  if (domain::is_utf8(bytes))
    piece["data"] = bytes;
  else
    piece["data_base64"] = base::base64_of(bytes);
  return piece;
}

/// Of a command that could not be started. Two codes are as in shells: whoever calls from a script
/// tells a missing program from one that ended with 2.
int refused(Session session, base::Error const& error) {
  int const code = session.out.fail(error, next_step_for(error));
  if (!error.message().starts_with("error starting process")) return code;
  return error.message().ends_with("Permission denied") ? not_executable : no_such_program;
}

asio::awaitable<int> Attached::follow() {
  auto const out = session_.out;
  auto const sink = [out](std::string_view kind, std::string_view bytes) {
    if (out.as_json())
      out.document(piece_of(kind, bytes));
    else if (kind == "stderr")
      out.raw_error(bytes);
    else
      out.raw(bytes);
  };
  auto const lost = [out](std::int64_t bytes) {
    out.note(fmt::format("space: {} bytes of output were lost: nobody read them in time", bytes));
  };
  auto end = co_await command_.follow(sink, lost);
  if (!end) co_return out.fail(end.error(), next_step_for(end.error()));
  if (!end->complaint.empty()) out.note(fmt::format("space: {}", end->complaint));
  if (out.as_json()) out.document(json::object{{"exit_code", end->exit_code}});
  co_return end->exit_code;
}

asio::awaitable<void> Attached::feed() {
  Reader input(co_await asio::this_coro::executor, 0);
  std::string buffer(input_chunk, '\0');
  for (;;) {
    auto got = co_await input.read_some(buffer);
    if (!got || *got == 0) break;
    auto written = co_await command_.write_input(buffer.substr(0, *got));
    if (!written) {
      bool const over = written.error().code() == base::Code::not_found ||
                        written.error().code() == base::Code::conflict;
      if (!over)
        session_.out.note(fmt::format("space: input was not taken: {}", written.error().message()));
      co_return;
    }
  }
  (void)co_await command_.close_input();
}

asio::awaitable<void> Attached::feed_keys() {
  Reader keys(co_await asio::this_coro::executor, 0);
  std::string buffer(4096, '\0');
  std::string recent = "\r";
  for (;;) {
    auto got = co_await keys.read_some(buffer);
    if (!got || *got == 0) co_return;
    recent += buffer.substr(0, *got);
    if (recent.find("\r~.") != std::string::npos || recent.find("\n~.") != std::string::npos)
      co_return;
    if (recent.size() > 2) recent.erase(0, recent.size() - 2);
    auto written = co_await command_.write_input(buffer.substr(0, *got));
    if (!written) co_return;
  }
}

asio::awaitable<void> Attached::pass_signals() {
  auto executor = co_await asio::this_coro::executor;
  int asked = 0;
  while (asked <= 2) {
    auto signal = co_await signals_.next(executor);
    if (!signal) co_return;
    if (*signal == SIGWINCH) {
      if (auto const size = size_of_terminal(0))
        (void)co_await command_.resize(size->columns, size->rows);
      continue;
    }
    std::string name = asked++ == 0 ? "TERM" : "KILL";
    auto sent = co_await command_.send_signal(std::move(name));
    // Cancelled: the command has ended meanwhile, of the signal or by itself.
    if (!sent && sent.error().code() != base::Code::cancelled)
      session_.out.note(
          fmt::format("space: the signal was not passed on: {}", sent.error().message()));
  }
}

asio::awaitable<void> Attached::kill() {
  (void)co_await command_.send_signal("KILL");
}

}  // namespace

asio::awaitable<int> exec(Session session, ExecOptions options) {
  if (options.terminal) co_return co_await shell(session, std::move(options));
  auto request = request_of(options);
  if (!request) co_return session.out.fail(request.error());
  bool const with_input = input_is_for_the_command();
  if (with_input) (*request)["stdin"] = true;
  Attached attached(session, options.sandbox, {SIGINT, SIGTERM, SIGHUP});
  auto const begun = base::system_clock().steady_now();
  auto started = co_await attached.start(std::move(*request));
  if (!started) co_return refused(session, started.error());
  async::TaskGroup group(co_await asio::this_coro::executor);
  if (with_input) group.spawn("stdin", attached.feed());
  group.spawn("signals", attached.pass_signals());
  int code = co_await attached.follow();
  group.cancel();
  co_await group.join();
  auto const limit =
      options.timeout.empty() ? base::Result<std::uint32_t>(0U) : parse_duration(options.timeout);
  auto const took = base::system_clock().steady_now() - begun;
  // The guest's clock may be a little fast.
  bool const over = limit && *limit > 0 && took >= std::chrono::seconds(*limit) - clock_slack;
  if (code == killed && over) {
    session.out.note(
        fmt::format("space: its time of {} was over, so it was killed", options.timeout));
    code = base::exit_code_of(base::Code::deadline_exceeded);
  }
  co_return code;
}

asio::awaitable<int> shell(Session session, ExecOptions options) {
  auto const size = size_of_terminal(0);
  if (!size) {
    co_return session.out.fail(
        {base::Code::invalid_argument, "a terminal is needed, and stdin is none"},
        fmt::format("Without one: space exec {} -- bash -c '…'", options.sandbox));
  }
  if (options.arguments.empty()) {
    // Any image: bash where there is one, else the shell that every image with a shell has.
    options.arguments = {
        "/bin/sh", "-c", "if command -v bash >/dev/null; then exec bash -l; else exec sh -l; fi"};
  }
  auto request = request_of(options);
  if (!request) co_return session.out.fail(request.error());
  (*request)["pty"] = json::object{{"cols", size->columns}, {"rows", size->rows}};
  char const* term = std::getenv("TERM");  // NOLINT(concurrency-mt-unsafe): before any thread
  if (!request->contains("env")) (*request)["env"] = json::object();
  (*request)["env"].as_object().emplace("TERM", term && *term ? term : "xterm-256color");
  Attached attached(session, options.sandbox, {SIGINT, SIGTERM, SIGHUP, SIGWINCH});
  auto started = co_await attached.start(std::move(*request));
  if (!started) co_return refused(session, started.error());
  int code = 0;
  bool left = false;
  {
    RawTerminal const raw(0);
    async::TaskGroup group(co_await asio::this_coro::executor);
    group.spawn("signals", attached.pass_signals());
    auto const first = co_await async::race(attached.follow_into(&code), attached.feed_keys());
    left = first == async::First::right;
    group.cancel();
    co_await group.join();
  }
  if (left) {
    session.out.note("\nLeft the terminal; its shell is ended.");
    co_await attached.kill();
  }
  co_return code;
}

}  // namespace cli
