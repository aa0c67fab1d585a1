#include "cli/up.hpp"

#include "base/log.hpp"
#include "cli/await_build.hpp"
#include "cli/cluster.hpp"
#include "cli/doctor.hpp"
#include "cli/images.hpp"
#include "cli/installation.hpp"
#include "cli/layout.hpp"
#include "cli/pool.hpp"
#include "cli/supervisor.hpp"
#include "cli/up_check.hpp"
#include "tls/tls.hpp"

#include <sys/stat.h>

#include <csignal>
#include <cstdio>
#include <filesystem>

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

namespace cli {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

constexpr std::array program_names = {"space",
                                      "space-api",
                                      "space-controller",
                                      "space-worker",
                                      "space-hostd",
                                      "space-proxy",
                                      "space-broker",
                                      "space-gateway",
                                      "space-probe",
                                      "space-agent"};

int complain(base::Error const& error, std::string_view next = {}) {
  fmt::print(stderr, "space: {}\n", error.message());
  if (!next.empty()) fmt::print(stderr, "{}\n", next);
  return base::exit_code_of(error.code());
}

std::string own_program_dir() {
  std::error_code failed;
  auto const path = fs::read_symlink("/proc/self/exe", failed);
  return failed ? std::string() : path.parent_path().string();
}

/// The installation's own copies, so that a new build does not change what runs, and so that other
/// users may execute what a clone in root's home holds.
base::Result<void> copy_programs(std::string const& from, std::string const& to) {
  for (std::string_view const name : program_names) {
    auto const source = fmt::format("{}/{}", from, name);
    auto const target = fmt::format("{}/{}", to, name);
    if (access(source.c_str(), R_OK) != 0) {
      return base::fail(
          base::Code::not_found,
          fmt::format("{} is not there; build all programs first: ./dev build release", source));
    }
    std::error_code failed;
    if (fs::equivalent(source, target, failed)) continue;
    if (fs::exists(target, failed) &&
        fs::file_size(source, failed) == fs::file_size(target, failed) &&
        fs::last_write_time(source, failed) == fs::last_write_time(target, failed)) {
      continue;
    }
    auto copied = run_checked({find_program("cp"),
                               "--preserve=timestamps",
                               "--reflink=auto",
                               "--no-preserve=ownership",
                               source,
                               target + ".new"});
    if (!copied) return base::passing(copied, "copy the programs");
    if (chmod((target + ".new").c_str(), 0755) != 0 ||
        rename((target + ".new").c_str(), target.c_str()) != 0) {
      return base::fail_errno("put " + target + " in its place");
    }
  }
  return {};
}

base::Result<void> write_configs(wire::Config const& config) {
  auto saved =
      write_file(saved_config_path(config.data_dir), wire::encode_text(config) + "\n", 0600);
  if (!saved) return base::passing(saved);
  auto plain = config;
  plain.database_url.clear();
  auto wrote = write_file(service_config_path(config), wire::encode_text(plain) + "\n", 0644);
  if (!wrote || config.database_url.empty()) return wrote;
  auto group = find_group(std::string(database_clients));
  if (!group) return base::passing(group);
  return write_file(
      database_config_path(config), wire::encode_text(config) + "\n", 0640, 0, *group);
}

base::Result<void> ensure_server_certificates(wire::Config const& config) {
  auto const directory = config.data_dir + "/ca";
  auto fresh =
      tls::ensure_certificates(directory, config.domain.substr(0, config.domain.find(':')));
  if (!fresh) return base::passing(fresh);
  // The proxy serves with the leaf's key; the authority's own key stays with root.
  auto proxy = find_user(config.proxy_user);
  if (!proxy) return base::passing(proxy);
  auto const key = directory + "/server.key";
  if (chown(key.c_str(), 0, proxy->gid) != 0 || chmod(key.c_str(), 0640) != 0)
    return base::fail_errno("let the proxy read its key");
  return {};
}

base::Result<wire::Config> saved_config(std::string const& data_dir) {
  auto config = wire::load_config(saved_config_path(data_dir));
  if (!config && config.error().code() == base::Code::not_found) {
    wire::Config fresh;
    fresh.data_dir = data_dir;
    fresh.domain.clear();
    return fresh;
  }
  return config;
}

/// A step that a person sees: its name, and what is done. The action may leave a few words about
/// its result.
struct Step {
  std::string_view what;
  std::function<base::Result<void>(std::string& words)> action;
};

base::Result<void> make_pool(wire::Config const& config, std::string& words) {
  auto pool = ensure_pool(config);
  if (!pool) return base::passing(pool);
  words = !pool->loop          ? "the data directory clones files itself"
          : pool->size_mib > 0 ? fmt::format("btrfs image, {} GiB at most", pool->size_mib >> 10)
                               : "btrfs image";
  return {};
}

base::Result<void> make_database(wire::Config const& config, std::string& words) {
  if (!config.database_url.empty()) {
    words = "an existing one, as told";
    return {};
  }
  auto fresh = ensure_cluster(config);
  if (!fresh) return base::passing(fresh);
  words = *fresh ? "new cluster" : "";
  return {};
}

base::Result<void> make_users(wire::Config const& config, std::string& words) {
  auto made = ensure_users(config);
  if (!made) return base::passing(made);
  if (*made > 0) words = fmt::format("{} users and groups made", *made);
  return ensure_directories(config);
}

/// Of a host before any program runs. Each step leaves what is already right alone.
base::Result<void> prepare_host(wire::Config const& config, std::string const& from_dir) {
  std::vector<Step> const steps = {
      {"users and directories", [&](std::string& words) { return make_users(config, words); }},
      {"programs", [&](std::string&) { return copy_programs(from_dir, config.program_dir); }},
      {"configuration", [&](std::string&) { return write_configs(config); }},
      {"certificates", [&](std::string&) { return ensure_server_certificates(config); }},
      {"disk pool", [&](std::string& words) { return make_pool(config, words); }},
      {"database", [&](std::string& words) { return make_database(config, words); }},
  };
  auto progress = Progress::on_stderr();
  for (auto const& [what, action] : steps) {
    progress.begin(what);
    std::string words;
    auto done = action(words);
    if (!done) {
      progress.failed();
      return base::passing(done, what);
    }
    progress.done(words);
  }
  return {};
}

/// What guests start from; `build` becomes the template's.
base::Result<void> prepare_images(wire::Config const& config,
                                  std::string const& from_dir,
                                  std::string& build) {
  auto images = find_images(from_dir);
  if (!images) return base::passing(images);
  auto progress = Progress::on_stderr();
  progress.begin("guest kernel and agent");
  auto guest = ensure_guest(config, *images, progress);
  if (!guest) {
    progress.failed();
    return base::passing(guest);
  }
  progress.done();
  progress.begin("template base");
  auto made = ensure_template(config, *images, progress);
  if (!made) {
    progress.failed();
    return base::passing(made);
  }
  progress.done(*made);
  build = *made;
  return {};
}

std::string tail_of_log(wire::Config const& config, std::string const& program) {
  auto text = read_file(fmt::format("{}/log/{}.jsonl", config.data_dir, program), 32U << 20);
  if (!text) return {};
  while (text->ends_with('\n'))
    text->pop_back();
  std::size_t at = text->size();
  for (int lines = 0; lines < 5 && at != std::string::npos && at > 0; ++lines)
    at = text->rfind('\n', at - 1);
  return text->substr(at == std::string::npos ? 0 : at + 1);
}

/// Waits until every program answers. On failure says which one does not, and what it said last.
base::Result<void> await_programs(wire::Config const& config) {
  auto progress = Progress::on_stderr();
  progress.begin("start the programs");
  std::string waiting_for = "supervisor";
  auto const start = base::system_clock().steady_now();
  while (base::system_clock().steady_now() - start < 90s) {
    auto state = read_supervisor(config);
    if (!state) break;
    if (state->state == "running") {
      progress.done(fmt::format("{} run", state->services.size() - 1));
      return {};
    }
    int through = 0;
    waiting_for.clear();
    for (auto const& service : state->services) {
      bool const done =
          service.state == "running" || (service.state == "ended" && service.last_exit == "exit 0");
      if (done)
        ++through;
      else if (waiting_for.empty())
        waiting_for = service.name;
    }
    if (!state->services.empty())
      progress.update(through * 100 / static_cast<int>(state->services.size()), waiting_for);
    (void)poll(nullptr, 0, 50);
  }
  progress.failed();
  return base::fail(base::Code::unavailable,
                    fmt::format("{0} does not come up; the end of {1}/log/{0}.jsonl:\n{2}",
                                waiting_for,
                                config.data_dir,
                                tail_of_log(config, waiting_for)));
}

/// KVM is proven by booting a guest under it, once per host, kernel and guest; a first sandbox
/// would wait for that, so it is shown here. Not a failure when it takes longer: sandboxes wait by
/// themselves.
void await_accelerator(wire::Config const& config) {
  constexpr auto limit = 60s;
  auto progress = Progress::on_stderr();
  progress.begin("prove the accelerator");
  auto const start = base::system_clock().steady_now();
  for (;;) {
    auto node = ask_worker(config);
    if (node && node->accelerator != "undecided") return progress.done(node->accelerator);
    auto const passed = base::system_clock().steady_now() - start;
    if (passed > limit) return progress.done(node ? "still trying" : node.error().message());
    progress.update(static_cast<int>(passed * 100 / limit), "booting a guest under KVM");
    (void)poll(nullptr, 0, 200);
  }
}

/// What stands in sandboxes' way out is somebody else's mostly, and no reason not to start.
void show_way_out(wire::Config const& config) {
  if (config.uplink != "host") return;
  auto const way_out = probe_uplink(config);
  if (way_out.health != Health::ok) fmt::print(stderr, "{}", render({way_out}));
}

/// What another database's sandboxes left here. A look at it takes the controller some seconds:
/// what it has not found yet, `space doctor` and its log tell later.
void show_unclaimed(wire::Config const& config) {
  auto const found = probe_unclaimed(config);
  if (found.health != Health::ok) fmt::print(stderr, "{}", render({found}));
}

/// The first sandboxes are to start as quickly as all later ones: the worker boots one machine of
/// the template, keeps it as the base snapshot and makes the warm machines from it. Not a failure
/// when it takes longer or cannot be: sandboxes start all the same, and say how.
void await_warm_machines(wire::Config const& config, std::string const& build) {
  if (config.warm_target == 0) return;
  constexpr auto limit = 90s;
  auto progress = Progress::on_stderr();
  progress.begin("warm machines");
  auto const start = base::system_clock().steady_now();
  for (;;) {
    auto const node = ask_worker(config);
    auto const passed = base::system_clock().steady_now() - start;
    if (!node) {
      if (passed > limit) return progress.done(node.error().message());
    } else {
      for (auto const& snapshot : node->base_snapshots) {
        if (snapshot.build == build && !snapshot.usable && !snapshot.reason.empty())
          return progress.done("none: " + snapshot.reason);
      }
      auto const warm = std::ranges::find(node->warm, build, &wire::WarmReport::build);
      if (warm != node->warm.end() && warm->ready >= warm->target)
        return progress.done(fmt::format("{} of base", warm->ready));
      if (passed > limit) return progress.done("still being made");
    }
    progress.update(static_cast<int>(passed * 100 / limit),
                    "booting the first, the others from it");
    (void)poll(nullptr, 0, 100);
  }
}

/// The first admin key, once. The database knows only its hash, so a key whose file is lost is
/// replaced.
base::Result<void> ensure_admin_key(wire::Config const& config) {
  if (access(admin_key_path(config).c_str(), F_OK) == 0) return {};
  auto as = identity_of(config.database_url.empty() ? Service::database : Service::api, config);
  if (!as) return base::passing(as);
  Program const program{.arguments = {config.program_dir + "/space-api",
                                      "replace-admin-key",
                                      "--config",
                                      database_config_path(config)},
                        .environment = plain_environment(),
                        .as = std::move(*as)};
  auto outcome = run_program(program);
  if (!outcome) return base::passing(outcome, "make the first key");
  if (outcome->exit_code != 0 || outcome->out.empty()) {
    return base::fail(
        base::Code::unavailable,
        fmt::format(
            "make the first key: space-api ended with {}: {}", outcome->exit_code, outcome->err));
  }
  return write_file(admin_key_path(config), outcome->out, 0600);
}

void show_programs(SupervisorState const& state) {
  for (auto const& service : state.services) {
    if (service.name == "migrate") continue;
    fmt::print(
        stderr,
        "  {:<18} {:<9} process {:<8}{}\n",
        service.name,
        service.state,
        service.pid,
        service.restarts > 0
            ? fmt::format(" started again {} times, last {}", service.restarts, service.last_exit)
            : "");
  }
}

void show_address(wire::Config const& config, UpOptions const& options) {
  auto key = read_file(admin_key_path(config));
  auto text = key ? *key : std::string();
  while (text.ends_with('\n'))
    text.pop_back();
  if (options.json) {
    wire::json::object out{{"address", http_address(config)},
                           {"tls_address", https_address(config)},
                           {"domain", config.domain},
                           {"key_file", admin_key_path(config)},
                           {"ca_file", ca_path(config)},
                           {"data_dir", config.data_dir},
                           {"run_dir", config.run_dir}};
    fmt::print("{}\n", wire::to_text(out));
    return;
  }
  fmt::print("address   {}   and   {}\n", http_address(config), https_address(config));
  fmt::print("key       {}   (in {}; `space` run as root uses it by itself)\n",
             text,
             admin_key_path(config));
  fmt::print("\nFor E2B clients, unmodified (also: space env):\n{}", e2b_lines(config, text));
}

/// For those who start the programs themselves.
int only_configure(wire::Config const& config) {
  auto users = ensure_users(config);
  if (!users) return complain(users.error());
  auto places = ensure_directories(config);
  if (!places) return complain(places.error());
  auto wrote = write_configs(config);
  if (!wrote) return complain(wrote.error());
  fmt::print("{}\n", service_config_path(config));
  return 0;
}

}  // namespace

wire::Config settle(wire::Config saved, UpOptions const& options) {
  bool const domain_was_chosen =
      !saved.domain.empty() && saved.domain != fmt::format("space.localhost:{}", saved.tls_port);
  auto const take = [](auto& into, auto const& from) {
    if (from) into = *from;
  };
  take(saved.data_dir, options.data_dir);
  take(saved.run_dir, options.run_dir);
  take(saved.instance, options.instance);
  take(saved.database_url, options.database_url);
  take(saved.node_name, options.node_name);
  take(saved.accelerator, options.accelerator);
  take(saved.guest_dir, options.guest_dir);
  take(saved.http_port, options.http_port);
  take(saved.tls_port, options.tls_port);
  take(saved.slot_uid_base, options.slot_uid_base);
  take(saved.slots_max, options.slots_max);
  take(saved.memory_mib_max, options.memory_mib_max);
  take(saved.vcpus_max, options.vcpus_max);
  take(saved.pool_mib_max, options.pool_mib_max);
  take(saved.disk_mib_per_s_max, options.disk_mib_per_s_max);
  take(saved.disk_ops_per_s_max, options.disk_ops_per_s_max);
  take(saved.net_mib_per_s_max, options.net_mib_per_s_max);
  take(saved.warm_target, options.warm_target);
  take(saved.uplink, options.uplink);
  take(saved.upstream_ca_file, options.upstream_ca_file);
  if (!options.resolvers.empty()) saved.resolvers = options.resolvers;
  if (!options.private_routes.empty()) saved.private_routes = options.private_routes;
  if (!options.listen_addresses.empty()) saved.listen_addresses = options.listen_addresses;
  if (options.domain)
    saved.domain = *options.domain;
  else if (!domain_was_chosen)
    saved.domain = fmt::format("space.localhost:{}", saved.tls_port);
  saved.program_dir = saved.data_dir + "/programs";
  return saved;
}

int up(UpOptions const& options) {
  base::log::configure("space",
                       base::log::Level::error);  // the steps below say what a person wants to know
  auto const data_dir = data_dir_or_default(options.data_dir.value_or(""));
  auto saved = saved_config(data_dir);
  if (!saved)
    return complain(saved.error(),
                    "The saved configuration can be removed: " + saved_config_path(data_dir));
  auto filled = options;
  filled.data_dir = data_dir;
  if (!filled.run_dir && getenv("SPACE_RUN_DIR"))
    filled.run_dir = run_dir_or_default("");  // NOLINT(concurrency-mt-unsafe): one thread
  auto const config = settle(*saved, filled);
  if (options.show) return show_address(config, options), 0;
  if (geteuid() != 0) {
    return complain(
        {base::Code::denied, "space up makes users, mounts and namespaces, which takes root"},
        "Try: sudo space up");
  }
  auto wrong = config.check();
  if (wrong.empty()) wrong = problem_of_names(config);
  if (!wrong.empty())
    return complain({base::Code::invalid_argument, wrong}, "How it is used: space up --help");
  if (auto running = read_supervisor(config)) {
    fmt::print(stderr, "The platform runs already (supervisor: process {}):\n", running->pid);
    show_programs(*running);
    if (wire::encode_text(config) != wire::encode_text(*saved))
      fmt::print(
          stderr,
          "The other settings that you gave take effect after: space down; then space up again\n");
    show_address(config, options);
    return 0;
  }
  auto const from_dir = options.program_dir.value_or(own_program_dir());
  if (options.config_only) return only_configure(config);
  if (auto const ports = probe_ports(config); ports.health == Health::broken) {
    return complain({base::Code::conflict, ports.proof}, "Choose others: " + ports.fix);
  }
  auto prepared = prepare_host(config, from_dir);
  if (!prepared) return complain(prepared.error(), "What is wrong with this host: space doctor");
  // A service that starts with the host takes the images as they are: it neither asks mirrors nor
  // builds.
  if (options.foreground) return run_supervisor(database_config_path(config));
  std::string build;
  auto made = prepare_images(config, from_dir, build);
  if (!made) return complain(made.error(), "What is wrong with this host: space doctor");
  auto started = start_supervisor(config, config.program_dir + "/space");
  if (!started) return complain(started.error());
  auto ready = await_programs(config);
  if (!ready)
    return complain(ready.error(),
                    "It keeps trying; watch it with: space up   stop it with: space down");
  await_accelerator(config);
  show_way_out(config);
  auto key = ensure_admin_key(config);
  if (!key) return complain(key.error());
  auto usable = await_build(config, build);
  if (!usable)
    return complain(usable.error(), "The programs run; their logs: " + config.data_dir + "/log");
  await_warm_machines(config, build);
  show_unclaimed(config);
  show_address(config, options);
  return 0;
}

int run_supervisor(std::string const& config_path) {
  base::log::configure("space-supervisor", base::log::Level::info);
  auto config = wire::load_config(config_path);
  if (!config) return complain(config.error());
  auto code = supervise(*config);
  if (!code) return complain(code.error());
  return *code;
}

}  // namespace cli
