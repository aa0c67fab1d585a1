#include "cli/supervisor.hpp"

#include "base/log.hpp"
#include "cli/cluster.hpp"
#include "cli/log_file.hpp"
#include "cli/restart_policy.hpp"
#include "cli/teardown.hpp"
#include "wire/codec.hpp"

#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

namespace cli {
namespace {

using namespace std::chrono_literals;

base::SteadyTime now() {
  return base::system_clock().steady_now();
}

std::string lock_path(wire::Config const& config) {
  return config.run_dir + "/supervisor.lock";
}

std::string state_path(wire::Config const& config) {
  return config.run_dir + "/supervisor.json";
}

/// A program under supervision: a service, or a step that ends by itself (`once`).
struct Unit {
  enum class State : std::uint8_t { waiting, starting, running, ended };

  std::string name;
  Program program;
  bool once = false;
  bool farewell = false;        // started while stopping
  std::function<bool()> ready;  // does it answer yet? Asked only while it lives
  int stop_signal = SIGTERM;
  std::chrono::seconds stop_limit{10};
  LogFile log;

  State state = State::waiting;
  RestartPolicy policy{};
  base::SteadyTime start_at{};  // when it may start (again)
  base::SteadyTime started_at{};
  pid_t pid = 0;
  os::Fd output{};
  std::string last_exit{};
};

std::string_view name_of(Unit::State state) {
  switch (state) {
    case Unit::State::waiting:
      return "waiting";
    case Unit::State::starting:
      return "starting";
    case Unit::State::running:
      return "running";
    case Unit::State::ended:
      return "ended";
  }
  return "?";
}

bool connects(int family, int type, sockaddr const* address, socklen_t size) {
  os::Fd const probe(socket(family, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  return probe && (connect(probe.get(), address, size) == 0 || errno == EAGAIN);
}

bool socket_answers(std::string const& path, int type) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) return false;
  std::ranges::copy(path, static_cast<char*>(address.sun_path));
  // SAFETY: the socket interface's way to pass an address of any family.
  return connects(AF_UNIX, type, reinterpret_cast<sockaddr const*>(&address), sizeof address);
}

std::function<bool()> readiness_of(Service service, wire::Config const& config) {
  auto const by_socket = [](std::string path, int type = SOCK_STREAM) -> std::function<bool()> {
    return [path = std::move(path), type] { return socket_answers(path, type); };
  };
  switch (service) {
    case Service::database:
      return by_socket(config.database_dir() + "/.s.PGSQL.5432");
    case Service::broker:
      return by_socket(config.broker_socket());
    case Service::hostd:
      return by_socket(config.hostd_socket(), SOCK_SEQPACKET);
    case Service::worker:
      return by_socket(config.worker_socket());
    case Service::api:
      return by_socket(config.api_socket());
    case Service::controller:
      return [] { return true; };
    case Service::proxy:
      return by_socket(config.proxy_socket());  // opened last, after both ports
  }
  return {};
}

std::vector<std::string> environment_of_programs() {
  auto environment = plain_environment();
  // Tests arm fault points through it; programs built without them ignore it.
  if (char const* faults = getenv("SPACE_FAULT_FILE"))
    environment.push_back(
        fmt::format("SPACE_FAULT_FILE={}", faults));  // NOLINT(concurrency-mt-unsafe): one thread
  return environment;
}

bool uses_database(Service service) {
  return service == Service::api || service == Service::controller;
}

base::Result<Unit> make_unit(Service service, wire::Config const& config) {
  auto identity = identity_of(service, config);
  if (!identity) return base::passing(identity);
  auto const name = std::string(name_of(service));
  std::vector<std::string> arguments = {
      config.program_dir + "/" + name,
      "--config",
      uses_database(service) ? database_config_path(config) : service_config_path(config)};
  if (service == Service::database) {
    auto command = database_command(config);
    if (!command) return base::passing(command);
    arguments = std::move(*command);
  }
  return Unit{
      .name = name,
      .program = {.arguments = std::move(arguments),
                  .environment = environment_of_programs(),
                  .as = std::move(*identity),
                  .signal_on_parent_death = service == Service::database ? SIGINT : SIGTERM,
                  .own_session = true},
      .ready = readiness_of(service, config),
      .stop_signal = service == Service::database ? SIGINT : SIGTERM,  // SIGINT: fast shutdown
      .log = LogFile(fmt::format("{}/log/{}.jsonl", config.data_dir, name))};
}

Unit make_step(std::string name,
               std::vector<std::string> arguments,
               std::optional<Identity> as,
               wire::Config const& config) {
  return Unit{.name = name,
              .program = {.arguments = std::move(arguments),
                          .environment = environment_of_programs(),
                          .as = std::move(as),
                          .signal_on_parent_death = SIGTERM,
                          .own_session = true},
              .once = true,
              .ready = [] { return false; },
              .log = LogFile(fmt::format("{}/log/{}.jsonl", config.data_dir, name))};
}

std::string describe_exit(int status) {
  return WIFSIGNALED(status) ? fmt::format("signal {}", WTERMSIG(status))
                             : fmt::format("exit {}", WEXITSTATUS(status));
}

/// Starts units in order, each when the one before answers; keeps them running; stops them in
/// reverse.
class Supervisor {
 public:
  Supervisor(wire::Config config, os::Fd signals)
      : config_(std::move(config)), signals_(std::move(signals)) {}

  base::Result<void> prepare();
  int run();

 private:
  void tick();
  void advance(Unit& unit);
  void start(Unit& unit);
  void on_signals();
  void reap();
  void on_end(Unit& unit, int status);
  void stop_next();
  void pump(Unit& unit);
  void wait_for_something();
  void publish();

  wire::Config config_;
  os::Fd signals_;
  std::vector<Unit> units_;  // in the order of starting
  std::vector<std::pair<std::string, Unit>>
      farewell_;        // while stopping, after the unit of that name has gone
  std::size_t up_ = 0;  // units_[0, up_) have been ready once
  bool stopping_ = false;
  bool changed_ = true;
  std::optional<base::SteadyTime> stop_deadline_;
};

base::Result<void> Supervisor::prepare() {
  bool const own_database = config_.database_url.empty();
  for (auto const service : all_services) {
    if (service == Service::database && !own_database) continue;
    auto unit = make_unit(service, config_);
    if (!unit) return base::passing(unit);
    // The schema is brought up to date before anything else looks at the database.
    if (service == Service::hostd) {
      auto owner = identity_of(own_database ? Service::database : Service::api, config_);
      if (!owner) return base::passing(owner);
      units_.push_back(make_step("migrate",
                                 {config_.program_dir + "/space-api",
                                  "migrate",
                                  "--config",
                                  database_config_path(config_)},
                                 std::move(*owner),
                                 config_));
    }
    units_.push_back(std::move(*unit));
  }
  // The proxy goes first, so that nothing new comes in; the worker ends its sandboxes while the API
  // and the controller can still write down why; hostd takes away what is left, also of a worker
  // that failed.
  for (auto const& [after, verb] :
       {std::pair("space-proxy", "end-sandboxes"), std::pair("space-worker", "clear-slots")}) {
    farewell_.emplace_back(
        after,
        make_step(verb,
                  {config_.program_dir + "/space", verb, "--config", service_config_path(config_)},
                  {},
                  config_));
    farewell_.back().second.farewell = true;
    // Suspending takes its time, and says itself when it gives up.
    farewell_.back().second.stop_limit =
        verb == std::string_view("end-sandboxes") ? end_sandboxes_limit : clear_slots_limit;
  }
  return {};
}

int Supervisor::run() {
  while (true) {
    tick();
    if (changed_) publish();
    if (stopping_ && units_.empty()) break;
    wait_for_something();
    on_signals();
    for (auto& unit : units_)
      pump(unit);
    reap();
  }
  unlink(state_path(config_).c_str());
  return 0;
}

void Supervisor::tick() {
  if (stopping_) return stop_next();
  for (std::size_t i = 0; i < units_.size() && i <= up_; ++i) {
    advance(units_[i]);
    bool const through = units_[i].once ? units_[i].state == Unit::State::ended
                                        : units_[i].state == Unit::State::running;
    if (i == up_ && through) {
      ++up_;
      changed_ = true;
    }
  }
}

void Supervisor::advance(Unit& unit) {
  if (unit.state == Unit::State::waiting && now() >= unit.start_at) start(unit);
  if (unit.state == Unit::State::starting && unit.pid != 0 && unit.ready()) {
    unit.state = Unit::State::running;
    changed_ = true;
    base::log::info(
        "program_ready",
        {{"name", unit.name},
         {"pid", unit.pid},
         {"took_ms",
          std::chrono::duration_cast<std::chrono::milliseconds>(now() - unit.started_at).count()}});
  }
}

void Supervisor::start(Unit& unit) {
  changed_ = true;
  unit.started_at = now();
  unit.policy.started(unit.started_at);
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK) != 0) {
    unit.start_at = now() + unit.policy.ended(now());
    return;
  }
  unit.output = os::Fd(ends[0]);
  os::Fd const write_end(ends[1]);
  // The program's own end blocks: a log line is written whole.
  fcntl(write_end.get(), F_SETFL, 0);
  auto started = start_program(unit.program, write_end, write_end);
  if (!started) {
    unit.last_exit = started.error().message();
    unit.start_at = now() + unit.policy.ended(now());
    base::log::error("program_did_not_start",
                     {{"name", unit.name}, {"reason", started.error().message()}});
    return;
  }
  unit.pid = started->pid;
  unit.state = Unit::State::starting;
  base::log::info("program_started", {{"name", unit.name}, {"pid", unit.pid}});
}

void Supervisor::on_signals() {
  signalfd_siginfo info{};
  while (read(signals_.get(), &info, sizeof info) == sizeof info) {
    if (info.ssi_signo == SIGCHLD || stopping_) continue;
    base::log::info("stopping", {{"signal", info.ssi_signo}});
    stopping_ = true;
    changed_ = true;
  }
}

void Supervisor::reap() {
  int status = 0;
  // Also machines whose hostd died: they are our children then (subreaper), and of no other
  // interest here.
  while (pid_t const pid = waitpid(-1, &status, WNOHANG)) {
    if (pid < 0) return;
    for (auto& unit : units_) {
      if (unit.pid == pid) on_end(unit, status);
    }
  }
}

void Supervisor::on_end(Unit& unit, int status) {
  changed_ = true;
  pump(unit);
  unit.output.reset();
  unit.pid = 0;
  unit.last_exit = describe_exit(status);
  bool const done = stopping_ || (unit.once && status == 0);
  unit.state = done ? Unit::State::ended : Unit::State::waiting;
  if (done) return;
  auto const pause = unit.policy.ended(now());
  unit.start_at = now() + pause;
  base::log::warn(
      "program_ended",
      {{"name", unit.name}, {"how", unit.last_exit}, {"starts_again_in_ms", pause.count()}});
}

/// One thing at a time, in reverse of the start; a unit that has gone may be followed by a farewell
/// step.
void Supervisor::stop_next() {
  if (units_.empty()) return;
  auto& unit = units_.back();
  if (unit.farewell && unit.state == Unit::State::waiting) {
    start(unit);
    if (unit.pid != 0)
      stop_deadline_ = now() + unit.stop_limit;
    else
      unit.state = Unit::State::ended;
  }
  if (unit.pid == 0) {
    auto const name = unit.name;
    units_.pop_back();
    for (auto& [after, step] : farewell_) {
      if (after == name) units_.push_back(std::move(step));
    }
    stop_deadline_.reset();
    changed_ = true;
    return;
  }
  if (!stop_deadline_) {
    kill(unit.pid, unit.stop_signal);
    stop_deadline_ = now() + unit.stop_limit;
  } else if (now() >= *stop_deadline_) {
    base::log::warn("program_killed", {{"name", unit.name}, {"reason", "did not end in time"}});
    kill(unit.pid, SIGKILL);
    stop_deadline_ = now() + unit.stop_limit;
  }
}

void Supervisor::pump(Unit& unit) {
  if (!unit.output) return;
  std::array<char, 65536> buffer{};
  for (int rounds = 0; rounds < 16; ++rounds) {  // one chatty program must not starve the others
    auto const got = read(unit.output.get(), buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got == 0) unit.output.reset();
    if (got <= 0) return;
    unit.log.append(std::string_view(buffer.data(), static_cast<std::size_t>(got)));
  }
}

void Supervisor::wait_for_something() {
  std::vector<pollfd> waits{{signals_.get(), POLLIN, 0}};
  auto timeout = stopping_ || up_ < units_.size() ? 20ms : 10'000ms;
  for (auto& unit : units_) {
    if (unit.output) waits.push_back({unit.output.get(), POLLIN, 0});
    if (unit.state == Unit::State::starting) timeout = std::min(timeout, 20ms);
    if (unit.state == Unit::State::waiting && !stopping_) {
      timeout = std::clamp(
          std::chrono::ceil<std::chrono::milliseconds>(unit.start_at - now()), 5ms, timeout);
    }
  }
  if (stopping_ && !units_.empty() && units_.back().pid == 0) timeout = 0ms;
  (void)poll(waits.data(), waits.size(), static_cast<int>(timeout.count()));
}

void Supervisor::publish() {
  changed_ = false;
  SupervisorState state{getpid(),
                        stopping_             ? "stopping"
                        : up_ < units_.size() ? "starting"
                                              : "running",
                        {}};
  for (auto const& unit : units_) {
    state.services.push_back({unit.name,
                              std::string(name_of(unit.state)),
                              unit.pid,
                              unit.policy.restarts(),
                              unit.last_exit});
  }
  auto wrote = write_file(state_path(config_), wire::encode_text(state) + "\n", 0644);
  if (!wrote) base::log::warn("state_not_written", {{"reason", wrote.error().message()}});
}

/// Held for the supervisor's life; the kernel lets go of it however the process ends.
base::Result<os::Fd> take_lock(wire::Config const& config) {
  os::Fd lock(open(lock_path(config).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!lock) return base::fail_errno("open " + lock_path(config));
  if (flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    return base::fail(base::Code::conflict, "a supervisor runs already for " + config.run_dir);
  }
  return lock;
}

base::Result<os::Fd> take_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (int const one : {SIGTERM, SIGINT, SIGHUP, SIGCHLD})
    sigaddset(&set, one);
  if (sigprocmask(SIG_BLOCK, &set, nullptr) != 0) return base::fail_errno("block signals");
  os::Fd signals(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals) return base::fail_errno("make a signal descriptor");
  return signals;
}

bool is_locked(wire::Config const& config) {
  os::Fd const lock(open(lock_path(config).c_str(), O_RDWR | O_CLOEXEC));
  return lock && flock(lock.get(), LOCK_EX | LOCK_NB) != 0;
}

}  // namespace

std::string service_config_path(wire::Config const& config) {
  return config.run_dir + "/config.json";
}

std::string database_config_path(wire::Config const& config) {
  // A database URL may hold a password: those who need none of it get a configuration without it.
  return config.run_dir + (config.database_url.empty() ? "/config.json" : "/config-database.json");
}

base::Result<SupervisorState> read_supervisor(wire::Config const& config) {
  if (!is_locked(config))
    return base::fail(base::Code::not_found, "the platform does not run; start it with: space up");
  auto text = read_file(state_path(config));
  if (!text && text.error().code() == base::Code::not_found)
    return SupervisorState{0, "starting", {}};
  if (!text) return base::passing(text);
  auto state = wire::decode_text<SupervisorState>(*text, wire::UnknownKeys::ignore);
  if (!state) return base::passing(state, "read the supervisor's state");
  return state;
}

base::Result<int> supervise(wire::Config const& config) {
  auto lock = take_lock(config);
  if (!lock) return base::passing(lock);
  auto signals = take_signals();
  if (!signals) return base::passing(signals);
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
    files.rlim_cur = files.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &files);
  }
  Supervisor supervisor(config, std::move(*signals));
  auto prepared = supervisor.prepare();
  if (!prepared) return base::passing(prepared);
  return supervisor.run();
}

base::Result<pid_t> start_supervisor(wire::Config const& config, std::string const& space_program) {
  // What one that was killed left behind would look like the new one's state.
  unlink(state_path(config).c_str());
  auto environment = environment_of_programs();
  Program program{
      .arguments = {space_program, "supervise", "--config", database_config_path(config)},
      .environment = std::move(environment),
      .own_session = true};
  os::Fd const log(open((config.data_dir + "/log/supervisor.jsonl").c_str(),
                        O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC,
                        0640));
  if (!log) return base::fail_errno("open the supervisor's log");
  auto started = start_program(program, log, log);
  if (!started) return base::passing(started);
  for (auto const limit = now() + 10s; now() < limit;) {
    if (is_locked(config)) return started->pid;
    pollfd ended{started->pidfd.get(), POLLIN, 0};
    if (poll(&ended, 1, 20) == 1) break;
  }
  return base::fail(
      base::Code::unavailable,
      "the supervisor did not start; see " + config.data_dir + "/log/supervisor.jsonl");
}

base::Result<void> stop_supervisor(wire::Config const& config, std::chrono::seconds limit) {
  auto state = read_supervisor(config);
  if (!state) return base::passing(state);
  if (state->pid <= 0 || kill(state->pid, SIGTERM) != 0)
    return base::fail_errno("ask the supervisor to stop");
  for (auto const end = now() + limit; now() < end;) {
    if (!is_locked(config)) return {};
    (void)poll(nullptr, 0, 50);
  }
  return base::fail(
      base::Code::deadline_exceeded,
      fmt::format(
          "the supervisor (process {}) did not end within {} s; see {}/log/supervisor.jsonl",
          state->pid,
          limit.count(),
          config.data_dir));
}

}  // namespace cli
