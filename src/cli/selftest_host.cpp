#include "cli/selftest_host.hpp"

#include "cli/installation.hpp"
#include "cli/selftest_targets.hpp"
#include "hostd/gateway_sockets.hpp"
#include "hostd/jail.hpp"
#include "hostd/jail_view.hpp"
#include "hostd/probe_actions.hpp"
#include "hostd/system_filter.hpp"
#include "hostd/uplink.hpp"
#include "vmm/qemu_command.hpp"
#include "wire/codec.hpp"

#include <sys/wait.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

namespace cli {
namespace {

namespace fs = std::filesystem;

/// A place that an intruder could have taken: how its processes are confined.
struct Place {
  std::string name;
  std::uint32_t user = 0;
  os::Fd view;
  std::vector<sock_filter> filter;  // empty: the probe puts on the gateway's own
  os::Fd network;                   // empty: a new one without links
};

std::string probe_program(wire::Config const& config) {
  for (auto const& directory :
       {config.program_dir, fs::read_symlink("/proc/self/exe").parent_path().string()}) {
    auto path = directory + "/space-probe";
    if (!directory.empty() && ::access(path.c_str(), X_OK) == 0) return path;
  }
  return {};
}

void add_missing(std::vector<hostd::JailFile>& to, std::vector<hostd::JailFile> const& from) {
  for (auto const& one : from) {
    bool const there = std::ranges::any_of(
        to, [&](hostd::JailFile const& other) { return other.inside == one.inside; });
    if (!there) to.push_back(one);
  }
}

/// As hostd makes it for a machine, with the probe beside the emulator.
base::Result<Place> machine_place(wire::Config const& config,
                                  std::string const& probe,
                                  std::string const& scratch) {
  auto files = hostd::files_of_qemu();
  if (!files) return base::passing(files, "find the emulator's files");
  std::error_code failed;
  for (auto const& [name, inside] :
       {std::pair("/vmlinux", vmm::qemu_kernel), std::pair("/initrd.gz", vmm::qemu_initrd)})
    if (fs::exists(config.guest() + name, failed))
      files->push_back({config.guest() + name, inside});
  auto own = hostd::files_of_program(probe);
  if (!own) return base::passing(own, "find the probe's files");
  add_missing(*files, *own);
  auto view = hostd::make_jail_view({.files = std::move(*files)}, scratch);
  if (!view) return base::passing(view, "make a machine's view");
  auto filter = hostd::make_system_filter(false);
  if (!filter) return base::passing(filter, "make a machine's filter");
  Place place;
  place.name = "machine";
  place.user = config.slot_uid_base + config.slots_max - 1;
  place.view = std::move(*view);
  place.filter = std::move(*filter);
  return place;
}

base::Result<Place> gateway_place(wire::Config const& config,
                                  std::string const& probe,
                                  std::string const& scratch) {
  auto files = hostd::files_of_program(probe);
  if (!files) return base::passing(files, "find the probe's files");
  auto view = hostd::make_jail_view({.files = std::move(*files)}, scratch);
  if (!view) return base::passing(view, "make a gateway's view");
  Place place;
  place.name = "gateway";
  place.user = config.slot_uid_base + 2 * config.slots_max - 1;
  place.view = std::move(*view);
  if (config.uplink == "none") return place;
  auto network = hostd::open_network_namespace(config.uplink == "host" ? hostd::uplink_path(config)
                                                                       : config.uplink);
  if (!network) return base::passing(network, "open the uplink");
  place.network = std::move(*network);
  return place;
}

struct Printed {
  std::string text;
  int status = -1;
};

/// What comes until the end; a jail that says nothing for long is killed.
Printed collect(pid_t pid, os::Fd const& from) {
  Printed out;
  std::array<char, 256> part{};
  for (;;) {
    pollfd wait{.fd = from.get(), .events = POLLIN, .revents = 0};
    auto const ready = ::poll(&wait, 1, 10'000);
    auto const got = ready == 1 ? ::read(from.get(), part.data(), part.size()) : 0;
    if (ready < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    out.text.append(part.data(), static_cast<std::size_t>(got));
  }
  ::kill(pid, SIGKILL);  // no harm where it has ended: it is ours to collect
  while (::waitpid(pid, &out.status, 0) < 0 && errno == EINTR) {
  }
  return out;
}

base::Result<Printed> try_inside(Place const& place,
                                 std::string const& probe,
                                 Attempt const& attempt) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return base::fail_errno("make a pipe");
  os::Fd const reading(ends[0]);
  os::Fd writing(ends[1]);
  hostd::JailSpec const spec{
      .program = probe,
      .argv = {"space-probe", place.name, attempt.action, attempt.argument},
      .user = place.user,
      .view = place.view,
      .group_doors = {},
      .clone_group = {},
      .fds = {},
      .errors = writing.get(),
      .filter = place.filter.empty() ? nullptr : &place.filter,
      .network = place.network ? place.network.get() : -1,
  };
  auto jailed = hostd::start_jailed(spec);
  if (!jailed) return base::passing(jailed, "start a jail");
  writing.reset();
  return collect(jailed->pid, reading);
}

/// The same step by root in a process of its own: what it changes ends with it.
int try_outside(Attempt const& attempt) {
  auto const child = ::fork();
  if (child < 0) return errno;
  if (child == 0) ::_exit(hostd::probe(attempt.action, attempt.argument));
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

std::string words_of(int error) {
  if (error == 0) return "worked";
  auto const* name = ::strerrorname_np(error);
  return name != nullptr ? name : fmt::format("error {}", error);
}

}  // namespace

AttemptResult judge(
    std::string place, std::string what, std::string const& printed, int status, int control) {
  AttemptResult out;
  out.place = std::move(place);
  out.what = std::move(what);
  out.control = words_of(control);
  constexpr std::string_view mark = "result ";
  auto const at = printed.find(mark);
  bool const began = printed.starts_with("begin\n");
  bool const by_filter = began && WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS;
  // A program that was to be run and was ends without a word of ours, with success.
  bool const became_another =
      began && at == std::string::npos && WIFEXITED(status) && WEXITSTATUS(status) == 0;
  int const error = at == std::string::npos ? -1 : std::atoi(printed.c_str() + at + mark.size());
  if (by_filter) {
    out.said = "killed by the filter";
  } else if (became_another || error == 0) {
    out.said = "worked";
    out.verdict = Verdict::broken;
    return out;
  } else if (error > 0) {
    out.said = words_of(error);
  } else {
    out.said = fmt::format("did not run (status {})", status);
    return out;
  }
  out.verdict = control == 0 ? Verdict::held : Verdict::unproven;
  return out;
}

base::Result<std::vector<AttemptResult>> run_host_suite(wire::Config const& config) {
  auto const probe = probe_program(config);
  if (probe.empty())
    return base::fail(base::Code::not_found, "space-probe is not installed beside this program");
  auto const intruder = config.slot_uid_base + config.slots_max - 1;
  auto targets = Targets::plant(config, intruder);
  if (!targets) return base::passing(targets, "prepare the suite");
  auto const scratch = (*targets)->directory() + "/jail";
  auto machine = machine_place(config, probe, scratch);
  if (!machine) return base::passing(machine);
  auto gateway = gateway_place(config, probe, scratch);
  if (!gateway) return base::passing(gateway);
  std::vector<AttemptResult> results;
  for (auto const* place : {&*machine, &*gateway}) {
    for (auto const& attempt : (*targets)->attempts(config)) {
      auto printed = try_inside(*place, probe, attempt);
      if (!printed) return base::passing(printed, attempt.what);
      results.push_back(
          judge(place->name, attempt.what, printed->text, printed->status, try_outside(attempt)));
    }
  }
  return results;
}

int selftest_host(Output const& output) {
  if (::geteuid() != 0)
    return output.fail({base::Code::denied, "the suite plants targets and makes jails: root only"},
                       "Try: sudo space selftest host");
  auto const config = config_of_host();
  auto results = run_host_suite(config);
  if (!results) return output.fail(results.error());
  int broken = 0;
  int unproven = 0;
  std::vector<std::vector<std::string>> rows;
  for (auto const& one : *results) {
    broken += one.verdict == Verdict::broken ? 1 : 0;
    unproven += one.verdict == Verdict::unproven ? 1 : 0;
    rows.push_back({one.place,
                    boost::describe::enum_to_string(one.verdict, ""),
                    one.what,
                    one.said,
                    one.control});
  }
  if (output.as_json()) {
    output.document(wire::encode(*results));
  } else {
    output.table({"PLACE", "VERDICT", "ATTEMPT", "IN THE JAIL", "CONTROL"}, rows);
    output.note(
        fmt::format("{} attempts: {} held, {} broken, {} unproven (their control failed on "
                    "this host, or they did not run)",
                    results->size(),
                    results->size() - static_cast<std::size_t>(broken + unproven),
                    broken,
                    unproven));
  }
  return broken > 0 ? 1 : 0;
}

}  // namespace cli
