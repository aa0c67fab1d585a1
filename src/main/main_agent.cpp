#include "agent/agent.hpp"
#include "base/log.hpp"
#include "wire/agent.hpp"

#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstdlib>

#include <malloc.h>
#include <unistd.h>

/// space-agent: as PID 1 it makes a machine out of a kernel, then serves the in-guest protocol.
/// Anywhere else (or with --no-init) it serves the same protocol and leaves the machine alone.
namespace {

namespace asio = boost::asio;

struct Arguments {
  bool is_init = ::getpid() == 1;
  std::uint16_t port = wire::agent_port;
  std::string address = "0.0.0.0";
  std::string etc_dir = "/etc";
};

constexpr char const* usage =
    "usage: space-agent [--no-init] [--address ADDRESS] [--port PORT] [--etc DIR]\n"
    "  PID 1 of a guest; with --no-init (or any other pid) a server for tests.\n"
    "  --etc DIR holds the passwd and group files that users are looked up in.\n";

bool parse_port(std::string_view text, std::uint16_t& port) {
  auto const [stop, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  return error == std::errc() && stop == text.data() + text.size();
}

bool parse(int argc, char** argv, Arguments& out) {
  // The kernel hands unknown words of its command line to PID 1.
  if (out.is_init) return true;
  for (int i = 1; i < argc; ++i) {
    std::string_view const word = argv[i];
    bool const has_value = i + 1 < argc;
    if (word == "--no-init") {
      out.is_init = false;
    } else if (word == "--port" && has_value) {
      if (!parse_port(argv[++i], out.port)) return false;
    } else if (word == "--address" && has_value) {
      out.address = argv[++i];
    } else if (word == "--etc" && has_value) {
      out.etc_dir = argv[++i];
    } else {
      return false;
    }
  }
  return true;
}

/// What asks an init to end: ctrl-alt-del and init(8)'s own signals all become SIGTERM, which ends
/// the loop.
void forward_to_terminate(int) {
  ::kill(::getpid(), SIGTERM);
}

asio::awaitable<int> serve(Arguments arguments) {
  auto const executor = co_await asio::this_coro::executor;
  agent::Protection protection;
  if (arguments.is_init) {
    // The pool's threads first: they would inherit our priority, and file work is nothing special.
    co_await async::run_blocking([] {});
    protection = agent::protect_agent();
  }
  agent::GuestMachine guest;
  agent::NoMachine nobody;
  agent::Agent::Options options;
  options.etc_dir = arguments.etc_dir;
  options.owns_machine = arguments.is_init;
  options.orphans =
      arguments.is_init ? agent::Reaper::Orphans::reap : agent::Reaper::Orphans::leave;
  if (arguments.is_init) {
    options.processes.control_group_root = "/sys/fs/cgroup";
    options.loopback.emplace().anybody = agent::has_children;
  }
  options.processes.reset_oom_score = protection.oom_score;
  options.processes.reset_real_time = protection.real_time;
  agent::Machine& machine = arguments.is_init ? static_cast<agent::Machine&>(guest) : nobody;
  agent::Agent agent(executor, machine, std::move(options));
  int exit_code = 0;
  auto listener = net::listen_tcp(executor, arguments.address, arguments.port);
  if (listener) {
    auto const port = (*listener)->port();
    agent.listen(std::move(*listener));
    base::log::info("agent_ready", {{"port", port}});
    auto forever = async::sleep_until(base::Deadline::max());
    co_await async::run_until(base::Deadline::max(), std::move(forever));
  } else {
    base::log::error("agent_cannot_listen", {{"what", listener.error().message()}});
    exit_code = 1;
  }
  // Cancelled, and this is the last that happens: what follows has to be awaited all the same.
  co_await asio::this_coro::reset_cancellation_state(asio::disable_cancellation());
  co_await agent.close();
  co_return exit_code;
}

int run(Arguments const& arguments) {
  auto main = [arguments] { return serve(arguments); };
  return async::run_main(std::move(main));
}

int run_as_init(Arguments const& arguments) {
#ifdef SPACE_FAULTS
  // Nobody gives PID 1 an environment: tests arm its fault points by a file of the guest's root.
  ::setenv(
      "SPACE_FAULT_FILE", "/run/space-faults", 0);  // NOLINT(concurrency-mt-unsafe): one thread
#endif
  auto const booted = agent::boot_machine();
  if (!booted) {
    base::log::error("boot_failed", {{"what", booted.error().message()}});
    agent::power_off();
  }
  for (int const signal : {SIGPWR, SIGUSR1, SIGUSR2})
    std::signal(signal, forward_to_terminate);
  run(arguments);
  agent::power_off();
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  if (!parse(argc, argv, arguments)) {
    std::fputs(usage, stderr);
    return 2;
  }
  // One arena: the pool's threads allocate little, and each arena more is memory that a guest
  // lacks.
  ::mallopt(M_ARENA_MAX, 1);
  std::signal(SIGPIPE, SIG_IGN);
  // The guest's console is slow and nobody reads it while all is well.
  base::log::configure("space-agent",
                       arguments.is_init ? base::log::Level::warn : base::log::Level::info);
  if (arguments.is_init) return run_as_init(arguments);
  return run(arguments);
}
