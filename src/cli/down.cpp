#include "cli/installation.hpp"
#include "cli/layout.hpp"
#include "cli/output.hpp"
#include "cli/pool.hpp"
#include "cli/progress.hpp"
#include "cli/supervisor.hpp"
#include "cli/teardown.hpp"
#include "cli/up.hpp"
#include "hostd/uplink.hpp"
#include "os/netns.hpp"
#include "wire/codec.hpp"

#include <cstdio>
#include <filesystem>

#include <poll.h>
#include <unistd.h>

namespace cli {
namespace {

namespace fs = std::filesystem;

base::Result<void> remove_tree(std::string const& path) {
  std::error_code failed;
  fs::remove_all(path, failed);
  if (failed) return base::fail_errno(failed.value(), "remove " + path);
  return {};
}

/// Only what space up made, by name: a data directory may have been put beside other things.
base::Result<void> purge(wire::Config const& config) {
  auto unmounted = unmount_pool(config);
  if (!unmounted) return unmounted;
  // hostd takes it away at its end; this is for one that was killed.
  if (config.uplink == "host") {
    auto cut = hostd::remove_uplink(config);
    if (!cut) return cut;
    os::release_netns_directory(config.run_dir + "/hostd/netns");
  }
  for (char const* name : {"pool",
                           "pool.btrfs",
                           "pool.btrfs.new",
                           "postgres",
                           "postgres.new",
                           "worker",
                           "api",
                           "broker",
                           "guest",
                           "ca",
                           "log",
                           "programs",
                           "admin.key",
                           "config.json"}) {
    auto removed = remove_tree(fmt::format("{}/{}", config.data_dir, name));
    if (!removed) return removed;
  }
  auto removed = remove_tree(config.run_dir);
  if (!removed) return removed;
  (void)rmdir(config.data_dir.c_str());  // stays when somebody else's files are in it
  return {};
}

}  // namespace

/// A supervisor that was killed leaves machines and slots behind, which only its programs can end:
/// it is started once more for that.
bool has_leftovers(wire::Config const& config) {
  std::error_code failed;
  fs::directory_iterator const slots(config.run_dir + "/hostd/slots", failed);
  return !failed && slots != fs::directory_iterator();
}

base::Result<void> start_for_the_end(wire::Config const& config) {
  auto started = start_supervisor(config, config.program_dir + "/space");
  if (!started) return base::passing(started);
  for (auto const limit = base::system_clock().in(std::chrono::seconds(60));
       base::system_clock().steady_now() < limit;) {
    auto state = read_supervisor(config);
    if (!state) return base::passing(state);
    if (state->state == "running") return {};
    (void)poll(nullptr, 0, 100);
  }
  return base::fail(base::Code::deadline_exceeded,
                    "the programs did not start to end what is left");
}

/// Said to the supervisor, or rather to the step that it runs.
base::Result<void> mark_stop(wire::Config const& config, bool suspends) {
  (void)unlink(suspends_report_path(config).c_str());
  if (!suspends) return write_file(no_suspend_path(config), "", 0644);
  (void)unlink(no_suspend_path(config).c_str());
  return {};
}

struct NotSuspended {
  std::string sandbox, why;
};
BOOST_DESCRIBE_STRUCT(NotSuspended, (), (sandbox, why))

struct SuspendReport {
  std::uint64_t suspended = 0;
  std::vector<NotSuspended> failed;
};
BOOST_DESCRIBE_STRUCT(SuspendReport, (), (suspended, failed))

/// What became of the sandboxes; nothing when none ran, or it was not asked for.
SuspendReport read_suspends(wire::Config const& config) {
  auto text = read_file(suspends_report_path(config));
  if (!text) return {};
  auto report = wire::decode_text<SuspendReport>(*text, wire::UnknownKeys::ignore);
  return report ? std::move(*report) : SuspendReport();
}

void tell_suspended(SuspendReport const& report) {
  if (report.suspended > 0)
    fmt::print(stderr,
               "{} sandbox{} suspended; after the next start they go on: space sandbox resume ID\n",
               report.suspended,
               report.suspended == 1 ? " is" : "es are");
  for (auto const& one : report.failed)
    fmt::print(stderr, "space: {} was not suspended and has ended: {}\n", one.sandbox, one.why);
}

/// With --json, what was done as one document on stdout.
int told(DownOptions const& options, bool stopped, bool purged, SuspendReport const& report) {
  if (!options.json) return 0;
  auto document = wire::encode(report);
  document.as_object()["stopped"] = stopped;
  document.as_object()["purged"] = purged;
  Output::standard(true).document(document);
  return 0;
}

int down(DownOptions const& options) {
  auto const complain = [out = Output::standard(options.json)](base::Error const& error) {
    return out.fail(error);
  };
  if (geteuid() != 0)
    return complain(
        {base::Code::denied,
         "space down stops programs of other users, which takes root; try: sudo space down"});
  auto const data_dir = data_dir_or_default(options.data_dir);
  auto config = wire::load_config(saved_config_path(data_dir));
  if (!config && config.error().code() == base::Code::not_found) {
    fmt::print(stderr, "Nothing was started from {} yet.\n", data_dir);
    return told(options, false, false, {});
  }
  if (!config) return complain(config.error());
  auto progress = Progress::on_stderr();
  if (!read_supervisor(*config) && has_leftovers(*config)) {
    progress.begin("find what a killed platform left");
    if (auto started = start_for_the_end(*config); started)
      progress.done();
    else
      progress.failed();
  }
  SuspendReport report;
  bool const ran = read_supervisor(*config).has_value();
  if (ran) {
    bool const suspends = !options.no_suspend && !options.purge;
    auto marked = mark_stop(*config, suspends);
    if (!marked) return complain(marked.error());
    progress.begin(suspends ? "suspend the sandboxes and stop the programs" : "stop the programs");
    auto stopped = stop_supervisor(*config, down_limit);
    if (!stopped) {
      progress.failed();
      return complain(stopped.error());
    }
    progress.done();
    report = read_suspends(*config);
    tell_suspended(report);
  } else {
    fmt::print(stderr, "The platform does not run.\n");
  }
  if (!options.purge) {
    fmt::print(stderr, "The data stay in {}. Remove them with: space down --purge\n", data_dir);
    return told(options, ran, false, report);
  }
  progress.begin("remove the data");
  auto purged = purge(*config);
  if (!purged) {
    progress.failed();
    return complain(purged.error());
  }
  progress.done(data_dir);
  return told(options, ran, true, report);
}

}  // namespace cli
