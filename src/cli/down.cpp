#include "cli/installation.hpp"
#include "cli/layout.hpp"
#include "cli/pool.hpp"
#include "cli/progress.hpp"
#include "cli/supervisor.hpp"
#include "cli/up.hpp"

#include <cstdio>
#include <filesystem>

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
  for (char const* name : {"pool",
                           "pool.btrfs",
                           "pool.btrfs.new",
                           "postgres",
                           "postgres.new",
                           "worker",
                           "api",
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

int down(DownOptions const& options) {
  auto const complain = [](base::Error const& error) {
    fmt::print(stderr, "space: {}\n", error.message());
    return base::exit_code_of(error.code());
  };
  if (geteuid() != 0)
    return complain(
        {base::Code::denied,
         "space down stops programs of other users, which takes root; try: sudo space down"});
  auto const data_dir = data_dir_or_default(options.data_dir);
  auto config = wire::load_config(saved_config_path(data_dir));
  if (!config && config.error().code() == base::Code::not_found) {
    fmt::print(stderr, "Nothing was started from {} yet.\n", data_dir);
    return 0;
  }
  if (!config) return complain(config.error());
  auto progress = Progress::on_stderr();
  if (read_supervisor(*config)) {
    progress.begin("stop the programs");
    auto stopped = stop_supervisor(*config, std::chrono::seconds(150));
    if (!stopped) {
      progress.failed();
      return complain(stopped.error());
    }
    progress.done();
  } else {
    fmt::print(stderr, "The platform does not run.\n");
  }
  if (!options.purge) {
    fmt::print(stderr, "The data stay in {}. Remove them with: space down --purge\n", data_dir);
    return 0;
  }
  progress.begin("remove the data");
  auto purged = purge(*config);
  if (!purged) {
    progress.failed();
    return complain(purged.error());
  }
  progress.done(data_dir);
  return 0;
}

}  // namespace cli
