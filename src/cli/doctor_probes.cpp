#include "cli/cluster.hpp"
#include "cli/doctor.hpp"
#include "cli/installation.hpp"
#include "cli/layout.hpp"
#include "cli/pool.hpp"
#include "cli/supervisor.hpp"
#include "http/client.hpp"
#include "wire/worker.hpp"

#include <arpa/inet.h>
#include <linux/kvm.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <sstream>

#include <boost/asio/this_coro.hpp>
#include <fcntl.h>
#include <netdb.h>
#include <unistd.h>

namespace cli {
namespace {

namespace asio = boost::asio;
namespace fs = std::filesystem;
using namespace std::chrono_literals;

constexpr std::string_view needs_root = "not looked at: it takes root";

Finding as_root_only(std::string what) {
  return {std::move(what), Health::degraded, std::string(needs_root), "", "sudo space doctor"};
}

/// The nearest directory that exists, for a data directory that is still to be made.
std::string existing(std::string path) {
  while (path.size() > 1 && access(path.c_str(), F_OK) != 0)
    path = fs::path(path).parent_path().string();
  return path;
}

std::string first_line(std::string const& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

Finding kvm_without_worker(std::string const& why) {
  Finding finding{.what = "accelerator", .health = Health::degraded};
  os::Fd const kvm(open("/dev/kvm", O_RDWR | O_CLOEXEC));
  auto const version = kvm ? ioctl(kvm.get(), KVM_GET_API_VERSION, 0) : -1;
  finding.proof = version > 0 ? fmt::format(
                                    "/dev/kvm opens (version {}), which proves nothing yet: the "
                                    "worker boots a real guest to know",
                                    version)
                              : "there is no usable /dev/kvm; guests will run in software";
  finding.follows = fmt::format("unknown until the platform runs ({})", why);
  finding.fix = "space up";
  return finding;
}

/// A group made for a moment below `parent`; the files in it tell what can be limited.
std::set<std::string> controllers_by_making(
    std::string const& parent, std::vector<std::pair<std::string, std::string>> const& files) {
  std::set<std::string> found;
  auto const group = fmt::format("{}/space-doctor-{}", parent, getpid());
  if (mkdir(group.c_str(), 0700) != 0) return found;
  for (auto const& [name, file] : files) {
    if (access(fmt::format("{}/{}", group, file).c_str(), W_OK) == 0) found.insert(name);
  }
  rmdir(group.c_str());
  return found;
}

std::set<std::string> limits_of_host(std::string const& root, bool& version_2) {
  version_2 = access((root + "/cgroup.controllers").c_str(), F_OK) == 0;
  std::set<std::string> found;
  if (version_2) {
    std::istringstream words(first_line(root + "/cgroup.controllers"));
    for (std::string word; words >> word;)
      found.insert(word);
    // Made for a moment, because a container may list controllers and forbid groups.
    return controllers_by_making(root, {{"", "cgroup.procs"}}).empty() ? std::set<std::string>()
                                                                       : found;
  }
  for (auto const& [name, file] : {std::pair("memory", "memory.limit_in_bytes"),
                                   std::pair("cpu", "cpu.cfs_quota_us"),
                                   std::pair("pids", "pids.max"),
                                   std::pair("freezer", "freezer.state"),
                                   std::pair("io", "blkio.throttle.read_bps_device")}) {
    auto const directory =
        fmt::format("{}/{}", root, std::string_view(name) == "io" ? "blkio" : name);
    found.merge(controllers_by_making(directory, {{name, file}}));
  }
  return found;
}

/// Runs a program in a network namespace of its own that ends with it.
base::Result<std::string> in_fresh_namespace(std::vector<std::string> arguments) {
  std::vector<std::string> words = {find_program("unshare"), "--net", "--"};
  words.insert(words.end(),
               std::make_move_iterator(arguments.begin()),
               std::make_move_iterator(arguments.end()));
  if (words[0].empty()) return base::fail(base::Code::not_found, "the program unshare is missing");
  return run_checked(std::move(words));
}

/// Only "somebody else has it" counts: an address that this host lacks is left out by the proxy.
bool may_listen(std::string const& address, std::uint16_t port) {
  bool const six = address.find(':') != std::string::npos;
  os::Fd const probe(socket(six ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  int const yes = 1;
  if (!probe) return true;
  (void)setsockopt(probe.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  sockaddr_in6 where6{};
  where6.sin6_family = AF_INET6;
  where6.sin6_port = htons(port);
  sockaddr_in where4{};
  where4.sin_family = AF_INET;
  where4.sin_port = htons(port);
  bool const parsed = six ? inet_pton(AF_INET6, address.c_str(), &where6.sin6_addr) == 1
                          : inet_pton(AF_INET, address.c_str(), &where4.sin_addr) == 1;
  // SAFETY: the socket interface's way to pass an address of any family.
  auto const* where =
      six ? reinterpret_cast<sockaddr const*>(&where6) : reinterpret_cast<sockaddr const*>(&where4);
  return !parsed || bind(probe.get(), where, six ? sizeof where6 : sizeof where4) == 0 ||
         errno != EADDRINUSE;
}

}  // namespace

base::Result<wire::NodeReport> ask_worker(wire::Config const& config) {
  base::Result<wire::NodeReport> result = base::fail(base::Code::unavailable, "not asked");
  auto main = [&]() -> asio::awaitable<int> {
    auto executor = co_await asio::this_coro::executor;
    http::Client worker(executor,
                        [path = config.worker_socket()] { return net::connect_unix(path); });
    http::RequestHead head{"GET", "/node", {{"Host", "worker"}}};
    auto response = co_await worker.request(std::move(head), {}, base::system_clock().in(5s));
    if (!response) {
      result = base::passing(response);
    } else if (response->status != 200) {
      result = base::fail(base::code_of_http_status(response->status), response->body);
    } else {
      result = wire::decode_text<wire::NodeReport>(response->body, wire::UnknownKeys::ignore);
    }
    co_return 0;
  };
  (void)async::run_main(main);
  return result;
}

Finding probe_programs(wire::Config const& config) {
  auto state = read_supervisor(config);
  if (!state)
    return {"programs",
            Health::degraded,
            "the platform does not run here",
            "sandboxes cannot be made",
            "space up"};
  Finding finding{.what = "programs"};
  std::string wrong;
  for (auto const& service : state->services) {
    bool const fine = service.state == "running" || service.last_exit == "exit 0";
    if (!fine)
      wrong += fmt::format("{}{} {} ({})",
                           wrong.empty() ? "" : ", ",
                           service.name,
                           service.state,
                           service.last_exit);
  }
  finding.proof =
      wrong.empty()
          ? fmt::format("{} programs run under supervisor {}", state->services.size(), state->pid)
          : wrong;
  if (!wrong.empty()) {
    finding.health = Health::broken;
    finding.follows = "the supervisor keeps starting them; their last lines say why they end";
    finding.fix = fmt::format("tail {}/log/*.jsonl", config.data_dir);
  }
  return finding;
}

Finding probe_accelerator(wire::Config const& config) {
  auto node = ask_worker(config);
  if (!node) return kvm_without_worker(node.error().message());
  Finding finding{.what = "accelerator"};
  finding.proof =
      fmt::format("{} with {}: {}", node->driver, node->accelerator, node->accelerator_proof);
  if (!node->boundary) {
    finding.health = Health::degraded;
    finding.follows =
        "software emulation is 5 to 10 times slower and no boundary against hostile code: for "
        "development and tests";
    finding.fix =
        "run on a host whose KVM boots a stock Linux guest, then: space down; space up "
        "--accelerator auto";
  }
  return finding;
}

Finding probe_emulator() {
  auto const path = find_program("qemu-system-x86_64");
  if (path.empty()) {
    return {"emulator",
            Health::broken,
            "qemu-system-x86_64 is not installed",
            "no machine can be started",
            "apt-get install qemu-system-x86"};
  }
  auto version = run_checked({path, "--version"});
  if (!version)
    return {"emulator",
            Health::broken,
            version.error().message(),
            "no machine can be started",
            "apt-get install --reinstall qemu-system-x86"};
  return {"emulator", Health::ok, version->substr(0, version->find('\n')), "", ""};
}

Finding probe_reflink(wire::Config const& config) {
  Finding finding{.what = "disk clones"};
  bool const pool = access(config.pool().c_str(), F_OK) == 0;
  auto const directory = pool ? config.pool() : existing(config.data_dir);
  if (access(directory.c_str(), W_OK) != 0) return as_root_only("disk clones");
  auto clones = can_reflink(directory);
  if (!clones)
    return {"disk clones",
            Health::broken,
            clones.error().message(),
            "disks of sandboxes cannot be made",
            "space up"};
  if (*clones) {
    finding.proof =
        fmt::format("a file was cloned in {}{}",
                    directory,
                    pool && is_mounted(config.pool()) ? " (btrfs in an image file)" : "");
  } else if (pool) {
    finding = {"disk clones",
               Health::broken,
               fmt::format("{} cannot clone files: the pool is not mounted", directory),
               "sandboxes cannot be made",
               "space down; space up"};
  } else {
    finding.proof =
        fmt::format("{} cannot clone files; space up makes a btrfs image for the pool", directory);
    finding.follows = "works; a data directory on btrfs or XFS saves the loop device";
  }
  return finding;
}

Finding probe_control_groups(std::string const& root) {
  if (geteuid() != 0) return as_root_only("control groups");
  bool version_2 = false;
  auto const found = limits_of_host(root, version_2);
  std::string has, lacks;
  for (char const* name : {"memory", "cpu", "pids", "io"}) {
    auto& list = found.contains(name) ? has : lacks;
    list += fmt::format("{}{}", list.empty() ? "" : ", ", name);
  }
  Finding finding{.what = "control groups"};
  finding.proof = fmt::format("version {}: a group was made and removed; limits for {}",
                              version_2 ? 2 : 1,
                              has.empty() ? "nothing" : has);
  if (!found.contains("memory") || !found.contains("pids")) {
    finding.health = Health::broken;
    finding.follows = fmt::format("without limits for {} a sandbox can harm its neighbours", lacks);
    finding.fix =
        "boot with systemd.unified_cgroup_hierarchy=1, and run on the host or in a container with "
        "its own writable /sys/fs/cgroup";
  } else if (!version_2 || !lacks.empty()) {
    finding.health = Health::degraded;
    finding.follows =
        version_2
            ? fmt::format("no limits for {}", lacks)
            : std::string("version 1 limits each resource apart; production hosts have version 2");
    finding.fix = version_2 ? fmt::format("echo '+{}' > {}/cgroup.subtree_control", lacks, root)
                            : "boot with systemd.unified_cgroup_hierarchy=1";
  }
  return finding;
}

Finding probe_nft() {
  if (geteuid() != 0) return as_root_only("packet filter");
  auto const nft = find_program("nft");
  if (nft.empty())
    return {"packet filter",
            Health::broken,
            "nft is not installed",
            "sandboxes would have no walls",
            "apt-get install nftables"};
  // The kinds of rule that a slot uses: netdev-less inet table, a set of addresses, a counter and a
  // drop.
  auto done = in_fresh_namespace({nft,
                                  "add table inet doctor; add chain inet doctor in { type filter "
                                  "hook prerouting priority mangle; policy drop; }; "
                                  "add rule inet doctor in ip daddr { 192.0.2.1 } tcp dport 80 "
                                  "counter tproxy ip to :8080 accept; "
                                  "delete table inet doctor"});
  if (done)
    return {"packet filter",
            Health::ok,
            "nft loaded a table with drop and tproxy in a fresh namespace and removed it",
            "",
            ""};
  return {"packet filter",
          Health::broken,
          done.error().message(),
          "sandboxes would have no walls, so none is started",
          "modprobe nft_tproxy nft_socket nf_tables"};
}

Finding probe_tap() {
  if (geteuid() != 0) return as_root_only("tap devices");
  auto done =
      in_fresh_namespace({find_program("ip"), "tuntap", "add", "dev", "doctor0", "mode", "tap"});
  if (done)
    return {"tap devices", Health::ok, "a tap was made in a fresh network namespace", "", ""};
  return {"tap devices",
          Health::broken,
          done.error().message(),
          "no sandbox can have a network slot",
          "modprobe tun"};
}

Finding probe_resolver(wire::Config const& config) {
  auto const domain = config.domain.substr(0, config.domain.find(':'));
  auto const name = "doctor." + domain;
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  int const code = getaddrinfo(name.c_str(), nullptr, &hints, &found);
  std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> const owner(code == 0 ? found : nullptr,
                                                                 &freeaddrinfo);
  if (code == 0) return {"host names", Health::ok, fmt::format("{} resolves", name), "", ""};
  return {"host names",
          Health::degraded,
          fmt::format("{} does not resolve: {}", name, gai_strerror(code)),
          "clients on this host need a URL instead of host names (space env --plain)",
          domain.ends_with("localhost")
              ? "apt-get install libnss-myhostname"
              : fmt::format("make *.{} point to this host in your DNS", domain)};
}

Finding probe_database(wire::Config const& config) {
  if (!config.database_url.empty())
    return {"database", Health::ok, "an existing PostgreSQL is used, as configured", "", ""};
  auto directory = find_postgres("");
  if (!directory)
    return {"database",
            Health::broken,
            directory.error().message(),
            "nothing can be remembered",
            "apt-get install postgresql"};
  auto version = run_checked({*directory + "/postgres", "--version"});
  if (!version)
    return {"database",
            Health::broken,
            version.error().message(),
            "nothing can be remembered",
            "apt-get install --reinstall postgresql"};
  return {"database", Health::ok, version->substr(0, version->find('\n')), "", ""};
}

Finding probe_disk_space(wire::Config const& config) {
  auto const directory = existing(config.data_dir);
  struct statvfs status{};
  if (statvfs(directory.c_str(), &status) != 0)
    return {"disk space", Health::broken, "cannot look at " + directory, "", ""};
  auto const gib =
      static_cast<double>(status.f_bavail) * static_cast<double>(status.f_frsize) / (1U << 30);
  Finding finding{.what = "disk space",
                  .proof = fmt::format("{:.1f} GiB free at {}", gib, directory)};
  if (gib < 2)
    finding.health = Health::broken,
    finding.follows = "too little for a template and a few sandboxes";
  else if (gib < 10)
    finding.health = Health::degraded, finding.follows = "enough to try it, not for many sandboxes";
  if (gib < 10) finding.fix = "space up --data-dir DIR on a larger disk";
  return finding;
}

Finding probe_pool_space(wire::Config const& config) {
  struct statvfs status{};
  if (!is_mounted(config.pool()) || statvfs(config.pool().c_str(), &status) != 0)
    return {"pool space", Health::ok, "no pool of its own: see disk space", "", ""};
  auto const mib = [&](std::uint64_t blocks) { return blocks * status.f_frsize >> 20U; };
  Finding finding{
      .what = "pool space",
      .proof = fmt::format(
          "{} of {} MiB free in {}", mib(status.f_bavail), mib(status.f_blocks), config.pool())};
  // A default sandbox's disk and what a worker keeps free beside it.
  if (mib(status.f_bavail) >= 4096 + 256) return finding;
  finding.health = Health::degraded;
  finding.follows = "creates are refused as exhausted, and who writes in a full pool waits";
  finding.fix = fmt::format("space sandbox list; space snapshot list; remove what else lies in {}",
                            config.pool());
  return finding;
}

Finding probe_ports(wire::Config const& config) {
  bool const runs = read_supervisor(config).has_value();
  std::string taken, free;
  for (auto const port : {config.http_port, config.tls_port}) {
    for (auto const& address : config.listen_addresses) {
      auto& list = may_listen(address, port) ? free : taken;
      list += fmt::format("{}{}:{}",
                          list.empty() ? "" : " ",
                          address.find(':') == std::string::npos ? address : "[" + address + "]",
                          port);
    }
  }
  if (runs && free.empty())
    return {"ports", Health::ok, "the platform listens on " + taken, "", ""};
  if (runs)
    return {"ports",
            Health::broken,
            "nobody listens on " + free,
            "clients cannot reach the platform",
            fmt::format("tail {}/log/space-proxy.jsonl", config.data_dir)};
  if (taken.empty()) return {"ports", Health::ok, "free: " + free, "", ""};
  return {"ports",
          Health::broken,
          "somebody else listens on " + taken,
          "the platform cannot",
          "space up --http-port 7381 --tls-port 7444"};
}

}  // namespace cli
