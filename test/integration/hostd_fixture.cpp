#include "integration/hostd_fixture.hpp"

#include "base/id.hpp"
#include "hostd/jail_view.hpp"
#include "hostd/system_filter.hpp"
#include "os/process.hpp"
#include "os/text_file.hpp"

#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

namespace test {
namespace {

namespace fs = std::filesystem;

constexpr std::uint32_t slots = 16;

std::uint32_t random_number() {
  return static_cast<std::uint32_t>(std::stoul(base::random_hex(3), nullptr, 16));
}

std::vector<std::string> mounts_below(std::string const& directory) {
  std::vector<std::string> points;
  std::istringstream lines(os::read_text("/proc/self/mountinfo").value_or(""));
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string skip, point;
    words >> skip >> skip >> skip >> skip >> point;
    if (point.starts_with(directory + "/")) points.push_back(point);
  }
  return points;
}

pid_t wait_for(pid_t pid, int* status = nullptr) {
  pid_t got = 0;
  do {
    got = ::waitpid(pid, status, 0);
  } while (got < 0 && errno == EINTR);
  return got;
}

}  // namespace

bool eventually(std::function<bool()> const& condition, std::chrono::seconds limit) {
  auto const end = std::chrono::steady_clock::now() + limit;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    ::poll(nullptr, 0, 5);
  }
  return true;
}

std::string read_to_end(os::Fd const& from) {
  std::string text;
  std::array<char, 4096> part{};
  for (;;) {
    auto const got = ::read(from.get(), part.data(), part.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return text;
    text.append(part.data(), static_cast<std::size_t>(got));
  }
}

Installation::Installation() {
  if (::geteuid() != 0)
    throw std::runtime_error("these tests make namespaces and control groups: run them as root");
  std::string directory = "/tmp/hostd.XXXXXX";
  if (::mkdtemp(directory.data()) == nullptr) throw std::runtime_error("no temporary directory");
  if (::chmod(directory.c_str(), 0755) != 0) throw std::runtime_error("no temporary directory");
  config_.instance = "t" + base::random_hex(3);
  config_.run_dir = directory;
  config_.data_dir = directory + "/data";
  config_.guest_dir = GUEST_DIR;
  config_.program_dir = std::filesystem::path(SPACE_HOSTD_PROGRAM).parent_path();
  config_.slot_uid_base = 1'000'000'000 + random_number() * 32;
  config_.slots_max = slots;
  config_.worker_user = "nobody";
  std::ofstream(directory + "/config.json") << wire::encode_text(config_);

  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
  watcher_ = os::Fd(ends[1]);
  watcher_pid_ = ::fork();
  if (watcher_pid_ == 0) {
    ::setsid();
    // Also another installation's end of its own pipe, which would keep that one's watcher waiting.
    ::dup2(ends[0], 3);
    ends[0] = 3;
    ::close_range(4, ~0U, 0);
    char byte = 0;
    while (::read(ends[0], &byte, 1) > 0) {
    }
    clean_up();
    ::_exit(0);
  }
  ::close(ends[0]);
}

void Installation::configure(std::function<void(wire::Config&)> const& change) {
  change(config_);
  std::ofstream(config_.run_dir + "/config.json") << wire::encode_text(config_);
}

Installation::~Installation() {
  watcher_.reset();
  wait_for(watcher_pid_);
}

std::vector<pid_t> Installation::processes() const {
  std::vector<pid_t> found;
  std::error_code ignored;
  for (auto const& entry : fs::directory_iterator("/proc", ignored)) {
    auto const pid = std::atoi(entry.path().filename().c_str());
    if (pid <= 0) continue;
    auto const user = os::user_of_process(pid);
    // A zombie is gone; collecting it is up to the host's first process once hostd has died.
    if (os::read_text(fmt::format("/proc/{}/status", pid)).value_or("").find("\nState:\tZ") !=
        std::string::npos)
      continue;
    if (user && *user >= config_.slot_uid_base && *user < config_.slot_uid_base + 2 * slots)
      found.push_back(pid);
  }
  return found;
}

std::vector<std::string> Installation::holdings() const {
  std::vector<std::string> found;
  for (auto const pid : processes())
    found.push_back(fmt::format("process {}", pid));
  for (auto const& point : mounts_below(config_.run_dir)) {
    if (!point.ends_with("/hostd/netns")) found.push_back("mount " + point);
  }
  std::error_code ignored;
  for (char const* part : {"/hostd/netns", "/hostd/slots", "/hostd/jail"}) {
    for (auto const& entry : fs::recursive_directory_iterator(config_.run_dir + part, ignored)) {
      found.push_back("file " + entry.path().string());
    }
  }
  for (auto const& group : os::open_control_groups(config_.instance)->list())
    found.push_back("group " + group);
  std::ranges::sort(found);
  return found;
}

void Installation::clean_up() const {
  for (auto const pid : processes())
    ::kill(pid, SIGKILL);
  // hostd itself, if the test died before it could end it.
  auto const pid = os::read_text(config_.run_dir + "/hostd.pid");
  if (pid) ::kill(std::atoi(pid->c_str()), SIGKILL);
  auto const groups = os::open_control_groups(config_.instance);
  eventually([&] {
    for (auto const& group : groups->list()) {
      auto killed = groups->kill(group);
      auto removed = groups->remove(group);
      static_cast<void>(killed);
      static_cast<void>(removed);
    }
    return groups->list().empty();
  });
  groups->remove_parent();
  auto mounts = mounts_below(config_.run_dir);
  std::ranges::reverse(mounts);
  for (auto const& point : mounts)
    ::umount2(point.c_str(), MNT_DETACH);
  std::error_code ignored;
  fs::remove_all(config_.run_dir, ignored);
}

void Hostd::start() {
  auto const config = installation_.directory() + "/config.json";
  auto const log = installation_.directory() + "/hostd.log";
  auto const faults = "SPACE_FAULT_FILE=" + fault_file();
  pid_ = ::fork();
  if (pid_ == 0) {
    int const file = ::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    ::dup2(file, 2);
    char const* const argv[] = {SPACE_HOSTD_PROGRAM, "--config", config.c_str(), nullptr};
    char const* const environment[] = {faults.c_str(), nullptr};
    ::execve(argv[0], const_cast<char* const*>(argv), const_cast<char* const*>(environment));
    ::_exit(127);
  }
  std::ofstream(installation_.directory() + "/hostd.pid") << pid_;
  bool const up = eventually([&] { return client().hello().has_value() || died(); });
  if (!up || pid_ == 0)
    throw std::runtime_error("space-hostd did not start: " + os::read_text(log).value_or(""));
}

void Hostd::stop(int signal) {
  if (pid_ <= 0) return;
  ::kill(pid_, signal);
  wait_for(pid_);
  pid_ = 0;
}

bool Hostd::died() {
  if (pid_ > 0 && ::waitpid(pid_, nullptr, WNOHANG) == pid_) pid_ = 0;
  return pid_ == 0;
}

void Hostd::arm(std::string const& line) const {
  std::ofstream(fault_file()) << line << '\n';
}

bool Hostd::armed() const {
  return !os::read_text(fault_file()).value_or("").empty();
}

bool Probed::killed_by(int signal) const {
  return WIFSIGNALED(wait_status) && WTERMSIG(wait_status) == signal;
}

ProbeJail::ProbeJail(Installation const& installation)
    : user_(installation.config().slot_uid_base) {
  auto const scratch = installation.directory() + "/probe";
  fs::create_directory(scratch);
  // A file that everybody may write, so that it is the mount and not the mode that protects it.
  auto const open_file = installation.directory() + "/open_file";
  std::ofstream(open_file) << "as it was";
  fs::permissions(open_file, fs::perms(0666));
  auto view = hostd::make_jail_view(
      {.files = {{JAIL_PROBE, "/probe"}, {open_file, "/open_file"}}, .kvm = false}, scratch);
  if (!view) throw std::runtime_error("no view: " + view.error().message());
  view_ = std::move(*view);
}

ProbeJail::Running ProbeJail::start(std::vector<std::string> arguments,
                                    ProbeOptions const& options) const {
  auto const filter = hostd::make_system_filter(options.kvm);
  if (!filter) throw std::runtime_error("no filter: " + filter.error().message());
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
  Running running;
  running.output = os::Fd(ends[0]);
  os::Fd const output_write(ends[1]);
  arguments.insert(arguments.begin(), "/probe");
  hostd::JailSpec const spec{.program = "/probe",
                             .argv = std::move(arguments),
                             .user = options.user != 0 ? options.user : user_,
                             .view = view_,
                             .group_doors = options.group_doors,
                             .clone_group = {},
                             .fds = options.fds,
                             .errors = output_write.get(),
                             .filter = options.filtered ? &*filter : nullptr,
                             .file_bytes_max = options.file_bytes_max,
                             .address_bytes_max = 0,
                             .tasks_max = options.tasks_max};
  auto jailed = hostd::start_jailed(spec);
  if (!jailed) throw std::runtime_error("no jail: " + jailed.error().message());
  running.process = std::move(*jailed);
  return running;
}

Probed ProbeJail::run(std::vector<std::string> arguments, ProbeOptions const& options) const {
  auto running = start(std::move(arguments), options);
  Probed probed;
  probed.said = read_to_end(running.output);
  wait_for(running.process.pid, &probed.wait_status);
  return probed;
}

}  // namespace test
