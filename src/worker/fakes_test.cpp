#include "worker/testing/fakes.hpp"

#include "base/id.hpp"
#include "os/packet_socket.hpp"
#include "vmm/descriptor.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>

#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <unistd.h>

namespace worker::testing {

namespace asio = boost::asio;
namespace fs = std::filesystem;

namespace {

std::pair<os::Fd, os::Fd> socket_pair() {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0)
    throw std::runtime_error("socketpair");
  return {os::Fd(ends[0]), os::Fd(ends[1])};
}

void say(os::Fd const& to, std::string_view text) {
  if (::send(to.get(), text.data(), text.size(), MSG_NOSIGNAL) < 0)
    throw std::runtime_error("nobody listens to the machine");
}

template <std::size_t n> std::string text_of(std::array<char, n> const& bytes) {
  return std::string(bytes.data(), ::strnlen(bytes.data(), n));
}

}  // namespace

TempDir::TempDir() {
  std::string pattern = "/tmp/space-worker-XXXXXX";
  if (!::mkdtemp(pattern.data())) throw std::runtime_error("mkdtemp");
  path_ = pattern;
}

TempDir::~TempDir() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

FakeHostd::FakeHostd(std::string socket_path) : path_(std::move(socket_path)) {
  auto* const memory = ::mmap(nullptr,
                              memory_bytes,
                              PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                              -1,
                              0);
  if (memory == MAP_FAILED) throw std::runtime_error("mmap");
  memory_ = static_cast<char*>(memory);
  come_up();
}

FakeHostd::~FakeHostd() {
  go_down();
  for (auto& [number, slot] : slots_)
    static_cast<void>(end(slot));
  ::munmap(memory_, memory_bytes);
}

void FakeHostd::write_memory(std::size_t at, std::string_view text) {
  std::scoped_lock const lock(mutex_);
  text.copy(memory_ + at, text.size());
}

std::size_t FakeHostd::halted() const {
  std::scoped_lock const lock(mutex_);
  return static_cast<std::size_t>(std::ranges::count_if(slots_, [](auto const& one) {
    return one.second.state == hostd::SlotState::running && one.second.halted;
  }));
}

FakeHostd::Answer FakeHostd::open_memory(Slot const& slot) {
  Answer out;
  for (char const* what : {"pagemap", "mem"}) {
    auto const path = fmt::format("/proc/{}/{}", slot.pid, what);
    out.fds.emplace_back(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  }
  return out;
}

void FakeHostd::go_down() {
  if (!thread_.joinable()) return;
  thread_.request_stop();
  thread_.join();
  listener_.reset();
}

void FakeHostd::come_up() {
  os::Fd listener(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path_.copy(address.sun_path, sizeof address.sun_path - 1);
  ::unlink(path_.c_str());
  // SAFETY: the socket calls take any address type through sockaddr*.
  auto const* any = reinterpret_cast<sockaddr const*>(&address);
  if (::bind(listener.get(), any, sizeof address) != 0 || ::listen(listener.get(), 64) != 0) {
    throw std::runtime_error("the fake hostd cannot listen at " + path_);
  }
  listener_ = std::move(listener);
  thread_ = std::jthread([this](std::stop_token stop) { serve(std::move(stop)); });
}

void FakeHostd::serve(std::stop_token stop) {
  while (!stop.stop_requested()) {
    pollfd waiting{.fd = listener_->get(), .events = POLLIN, .revents = 0};
    if (speak_qmp) {
      std::scoped_lock const lock(mutex_);
      for (auto& [number, slot] : slots_)
        talk(slot);
    }
    if (::poll(&waiting, 1, speak_qmp ? 1 : 5) <= 0) continue;
    os::Fd connection(::accept4(listener_->get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!connection) continue;
    hostd::Request request;
    auto const packet =
        os::receive_packet(connection, std::as_writable_bytes(std::span(&request, 1)));
    if (!packet || packet->size != sizeof request) continue;
    auto const said = answer(request);
    std::vector<int> fds;
    for (auto const& fd : said.fds)
      fds.push_back(fd.get());
    static_cast<void>(os::send_packet(connection, std::as_bytes(std::span(&said.reply, 1)), fds));
  }
}

FakeHostd::Answer FakeHostd::answer(hostd::Request const& request) {
  std::scoped_lock const lock(mutex_);
  Answer out;
  if (request.action == hostd::Action::hello) {
    out.reply.features = static_cast<std::uint32_t>(features.load());
    return out;
  }
  if (request.action == hostd::Action::check_uplink) {
    if (uplink_trouble > 0) {
      --uplink_trouble;
      out.reply.status = hostd::Status::failed;
    } else if (altered_uplink.exchange(false)) {
      out.reply.status = hostd::Status::altered;
    }
    return out;
  }
  auto const slot = slots_.find(request.slot);
  if (request.action == hostd::Action::make_slot) {
    if (fail_make > 0) {
      --fail_make;
      out.reply.status = hostd::Status::failed;
    } else if (slot != slots_.end()) {
      out.reply.status = hostd::Status::busy;
    } else {
      slots_[request.slot];
    }
    return out;
  }
  if (slot == slots_.end()) {
    if (request.action != hostd::Action::inspect_slot) out.reply.status = hostd::Status::absent;
    return out;
  }
  return on_slot(request, slot);
}

FakeHostd::Answer FakeHostd::on_slot(hostd::Request const& request,
                                     std::map<std::uint32_t, Slot>::iterator found) {
  auto& slot = found->second;
  notice_end(slot);
  Answer out;
  switch (request.action) {
    case hostd::Action::remove_slot:
      if (slot.state == hostd::SlotState::running || slot.state == hostd::SlotState::exited) {
        out.reply.status = hostd::Status::busy;
      } else if (fail_remove > 0) {
        --fail_remove;
        out.reply.status = hostd::Status::failed;
      } else {
        if (altered_slot == static_cast<int>(request.slot)) altered_slot = -1;
        slots_.erase(found);
      }
      return out;
    case hostd::Action::start_vmm:
      ++starts;
      slot.sandbox = text_of(request.sandbox);
      slot.epoch = request.epoch;
      start_machine(slot);
      return connect_machine(slot, true);
    case hostd::Action::attach_vmm:
      if (slot.state == hostd::SlotState::running) return connect_machine(slot, false);
      out.reply.status = hostd::Status::absent;
      return out;
    case hostd::Action::end_vmm:
      return end(slot);
    case hostd::Action::dial:
      return dial();
    case hostd::Action::open_memory:
      return open_memory(slot);
    case hostd::Action::start_gateway:
      ++gateways;
      for (int i = 0; i < 2; ++i)
        out.fds.push_back(std::move(socket_pair().first));
      return out;
    case hostd::Action::count_drops:
      out.reply.drops.front() = drops;
      return out;
    case hostd::Action::check_rules:
      // A slot of the pool stays in sight until it is removed.
      if (altered_slot == static_cast<int>(request.slot)) {
        out.reply.status = hostd::Status::altered;
        if (slot.state == hostd::SlotState::running) altered_slot = -1;
      }
      return out;
    default:
      out.reply.state = slot.state;
      slot.sandbox.copy(out.reply.sandbox.data(), out.reply.sandbox.size());
      out.reply.epoch = slot.epoch;
      out.reply.pid = slot.pid;
      return out;
  }
}

void FakeHostd::start_machine(Slot& slot) {
  auto const parent = ::getpid();
  slot.pid = ::fork();
  if (slot.pid == 0) {
    ::close_range(3, ~0U, 0);  // our sockets are not its
    // A sanitizer's handlers would make an ordinary end of a death by these.
    for (int const number : {SIGSEGV, SIGABRT, SIGBUS, SIGILL, SIGFPE})
      ::signal(number, SIG_DFL);
    // Not PR_SET_PDEATHSIG: that would fire when our thread ends, and a machine outlives its hostd.
    while (::getppid() == parent)
      ::poll(nullptr, 0, 200);
    ::_exit(1);
  }
  slot.state = hostd::SlotState::running;
}

FakeHostd::Answer FakeHostd::connect_machine(Slot& slot, bool with_errors) {
  Answer out;
  out.reply.pid = slot.pid;
  out.reply.epoch = slot.epoch;
  slot.sandbox.copy(out.reply.sandbox.data(), out.reply.sandbox.size());
  out.fds.emplace_back(static_cast<int>(::syscall(SYS_pidfd_open, slot.pid, 0)));
  auto [qmp, ours] = socket_pair();
  slot.qmp = std::move(ours);
  if (speak_qmp)
    say(slot.qmp,
        R"({"QMP":{"version":{},"capabilities":[]}})"
        "\r\n");
  out.fds.push_back(std::move(qmp));
  auto [console, also_ours] = socket_pair();
  slot.console = std::move(also_ours);
  out.fds.push_back(std::move(console));
  if (with_errors) out.fds.push_back(std::move(socket_pair().first));
  return out;
}

/// What the worker has said to the machine since.
void FakeHostd::talk(Slot& slot) {
  while (slot.qmp) {
    std::array<char, 4096> bytes{};
    std::array<char, CMSG_SPACE(sizeof(int))> control{};
    iovec part{bytes.data(), bytes.size()};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    auto const got = ::recvmsg(slot.qmp.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got <= 0) return;
    if (auto const* head = CMSG_FIRSTHDR(&message); head && head->cmsg_type == SCM_RIGHTS) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(head), sizeof fd);
      slot.passed = os::Fd(fd);
    }
    slot.heard.append(bytes.data(), static_cast<std::size_t>(got));
    for (auto end = slot.heard.find('\n'); end != std::string::npos; end = slot.heard.find('\n')) {
      auto const line = slot.heard.substr(0, end);
      slot.heard.erase(0, end + 1);
      obey(slot, line);
    }
  }
}

void FakeHostd::obey(Slot& slot, std::string const& line) {
  auto const command = boost::json::parse(line).as_object();
  auto const& name = command.at("execute").as_string();
  boost::json::value answer = boost::json::object();
  if (name == "stop") ++stops;
  if (name == "stop" || name == "cont") slot.halted = name == "stop";
  if (name == "query-status")
    answer = boost::json::object{{"status", slot.halted ? "paused" : "running"}};
  if (name == "xen-save-devices-state") {
    using namespace std::string_view_literals;
    constexpr auto devices = "QEVM\0\0\0\x03STATE"sv;
    if (::write(slot.passed.get(), devices.data(), devices.size()) != std::ssize(devices))
      throw std::runtime_error("the devices cannot be written");
  }
  if (name == "human-monitor-command") {
    // SAFETY: the address is all that is wanted of it.
    answer = fmt::format("Host virtual address for 0x0 (m) is {:#x}\r\n",
                         reinterpret_cast<std::uintptr_t>(memory_));
  }
  if (name == "query-migrate") answer = boost::json::object{{"status", "completed"}};
  if (name == "migrate" && ::write(slot.passed.get(), "STATE", 5) != 5)
    throw std::runtime_error("the state cannot be written");
  if (name == "migrate-incoming") {
    std::array<char, 256> state{};
    auto const got = ::read(slot.passed.get(), state.data(), state.size());
    bool const fits =
        got >= 5 &&
        std::string_view(state.data(), static_cast<std::size_t>(got)).ends_with("STATE");
    if (!fits || refuse_restore) {
      ::kill(slot.pid, SIGKILL);
      slot.qmp.reset();
      return;
    }
  }
  auto const text =
      boost::json::serialize(boost::json::object{{"return", answer}, {"id", command.at("id")}}) +
      "\r\n";
  // Its worker may have died meanwhile.
  static_cast<void>(::send(slot.qmp.get(), text.data(), text.size(), MSG_NOSIGNAL));
}

void FakeHostd::notice_end(Slot& slot) {
  if (slot.state != hostd::SlotState::running) return;
  if (::waitpid(slot.pid, &slot.status, WNOHANG) != slot.pid) return;
  slot.state = hostd::SlotState::exited;
  slot.pid = 0;
  slot.qmp.reset();
  slot.console.reset();
}

FakeHostd::Answer FakeHostd::end(Slot& slot) {
  Answer out;
  if (fail_end > 0) {
    --fail_end;
    out.reply.status = hostd::Status::failed;
    return out;
  }
  if (slot.state == hostd::SlotState::empty) {
    out.reply.status = hostd::Status::absent;
    return out;
  }
  if (slot.state == hostd::SlotState::running) {
    ::kill(slot.pid, SIGKILL);
    ::waitpid(slot.pid, &slot.status, 0);
  }
  out.reply.wait_status = slot.status;
  out.reply.out_of_memory = say_oom ? 1 : 0;
  slot = Slot();
  return out;
}

FakeHostd::Answer FakeHostd::dial() const {
  Answer out;
  os::Fd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  // Port 1 of the loopback: nobody listens there, so the connection is reset.
  address.sin_port = htons(agent_port ? agent_port.load() : std::uint16_t{1});
  // SAFETY: the socket calls take any address type through sockaddr*.
  static_cast<void>(
      ::connect(socket.get(), reinterpret_cast<sockaddr const*>(&address), sizeof address));
  out.fds.push_back(std::move(socket));
  return out;
}

void FakeHostd::forget_all() {
  std::scoped_lock const lock(mutex_);
  for (auto& [number, slot] : slots_)
    static_cast<void>(end(slot));
  slots_.clear();
}

void FakeHostd::kill_machine(std::uint32_t slot, int signal) {
  std::scoped_lock const lock(mutex_);
  ::kill(slots_.at(slot).pid, signal);
  notice_end(slots_.at(slot));
}

void FakeHostd::say_on_console(std::uint32_t slot, std::string_view text) {
  std::scoped_lock const lock(mutex_);
  say(slots_.at(slot).console, text);
}

void FakeHostd::say_on_qmp(std::uint32_t slot, std::string_view text) {
  std::scoped_lock const lock(mutex_);
  say(slots_.at(slot).qmp, text);
}

std::size_t FakeHostd::slots() const {
  std::scoped_lock const lock(mutex_);
  return slots_.size();
}

std::size_t FakeHostd::machines() const {
  std::scoped_lock const lock(mutex_);
  return static_cast<std::size_t>(std::ranges::count_if(
      slots_, [](auto const& one) { return one.second.state == hostd::SlotState::running; }));
}

void FakeHostd::plant(std::uint32_t number, std::string const& sandbox, std::uint64_t epoch) {
  std::scoped_lock const lock(mutex_);
  auto& slot = slots_[number];
  slot.sandbox = sandbox;
  slot.epoch = epoch;
  start_machine(slot);
}

FakeAgent::FakeAgent(asio::any_io_executor executor) : server_(executor, *this), tasks_(executor) {
  auto listener = net::listen_tcp(executor, "127.0.0.1", 0);
  if (!listener) throw std::runtime_error("listen");
  listener_ = std::move(*listener);
  port_ = listener_->port();
  tasks_.spawn("accept", accept());
}

asio::awaitable<void> FakeAgent::close() {
  listener_->close();
  tasks_.cancel();
  co_await tasks_.join();
  co_await server_.close(std::chrono::milliseconds(0));
}

asio::awaitable<void> FakeAgent::accept() {
  for (;;) {
    auto connection = co_await listener_->accept();
    if (!connection) co_return;
    ++connections;
    tasks_.spawn("serve", serve(std::move(*connection)));
  }
}

void FakeAgent::hang_up() {
  for (auto* const one : open_)
    one->close();
}

asio::awaitable<void> FakeAgent::serve(net::Stream connection) {
  auto* const stream = connection.get();
  open_.insert(stream);
  auto const forget =
      std::shared_ptr<void>(nullptr, [this, stream](void*) { open_.erase(stream); });
  if (mood == Mood::silent) co_await async::sleep_for(std::chrono::hours(1));
  if (mood == Mood::garbage) {
    auto const written = co_await connection->write_text(std::string(200'000, '\x07') + "\r\n\r\n");
    static_cast<void>(written);
    co_return;
  }
  co_await server_.serve(std::move(connection));
}

asio::awaitable<void> FakeAgent::handle(http::Request& request, http::ResponseWriter& response) {
  http::Response answer{204, {}, {}};
  auto const path = request.head.path();
  if (path == "/metrics")
    answer = {200, {}, R"({"ts": 7, "cpu_used_pct": 1.5, "mem_total": 100, "secret": "dropped"})"};
  if (path == "/process.Process/Start") {
    ++exercises;
    answer = {200, {}, R"({"event":{"end":{"exited":true}}})"};
  }
  if (path == "/init") {
    auto const body = co_await request.body.read_all(1 << 20);
    auto const init = wire::decode_text<wire::AgentInit>(*body);
    if (!init) throw std::runtime_error("the worker sent a wrong /init: " + init.error().message());
    ++inits;
    last_init = *init;
    answer.headers.set("X-Space-Nonce", mood == Mood::wrong_nonce ? "00" : init->nonce);
    if (mood == Mood::refuses) answer = {400, {}, "no \x1b[31mway\x1b[0m\n"};
    if (mood == Mood::endless) answer = {204 + 1, {}, std::string(10 << 20, 'x')};
  }
  auto const sent = co_await response.send(std::move(answer));
  static_cast<void>(sent);
}

asio::awaitable<int> run_victim(std::string filter,
                                std::string dir,
                                std::string point,
                                wire::StartSandbox request) {
  std::ofstream(dir + "/faults") << point << " kill\n";
  std::vector<std::string> variables{"SPACE_FAULT_FILE=" + dir + "/faults",
                                     "VICTIM_DIR=" + dir,
                                     "VICTIM_REQUEST=" + wire::encode_text(request)};
  std::vector<std::string> arguments{
      "victim", "--gtest_also_run_disabled_tests", "--gtest_filter=" + filter, "--gtest_brief=1"};
  auto const pointers = [](std::vector<std::string>& texts) {
    std::vector<char*> out;
    for (auto& text : texts)
      out.push_back(text.data());
    out.push_back(nullptr);
    return out;
  };
  pid_t pid = 0;
  int const problem = ::posix_spawn(&pid,
                                    "/proc/self/exe",
                                    nullptr,
                                    nullptr,
                                    pointers(arguments).data(),
                                    pointers(variables).data());
  if (problem != 0) throw std::runtime_error("posix_spawn");
  os::Fd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  auto watched = vmm::Descriptor::adopt(co_await asio::this_coro::executor, std::move(pidfd));
  co_await watched->wait_readable();
  int status = 0;
  ::waitpid(pid, &status, 0);
  co_return status;
}

wire::Config config_in(std::string const& dir) {
  wire::Config config;
  config.data_dir = dir + "/data";
  config.run_dir = dir + "/run";
  config.accelerator = "tcg";
  config.slots_max = 8;
  config.memory_mib_max = 4096;
  config.vcpus_max = 16;
  config.warm_target = 0;
  config.base_snapshots = false;
  for (auto const* path : {"/data/guest", "/data/pool/templates/b1", "/run/hostd", "/run/worker"})
    fs::create_directories(dir + path);
  std::ofstream(dir + "/data/guest/vmlinux") << "kernel";
  std::ofstream(dir + "/data/guest/initrd.gz") << "initramfs";
  std::ofstream(dir + "/data/pool/templates/b1/disk.img") << std::string(4096, 'd');
  fs::resize_file(dir + "/data/pool/templates/b1/disk.img", 1 << 20);
  return config;
}

Rig::Rig() : config(config_in(dir.path())), hostd(config.hostd_socket()) {}

wire::StartSandbox Rig::request() {
  wire::StartSandbox request;
  request.sandbox = base::SandboxId::make().str();
  request.epoch = 1;
  request.build = "b1";
  request.disk_mib = 4;
  request.env = {{"A", "1"}};
  request.access_token = "token";
  return request;
}

std::size_t Rig::disks() const {
  std::error_code error;
  std::size_t count = 0;
  for (auto const& item : fs::directory_iterator(config.pool() + "/sandboxes", error))
    count += item.is_directory() ? 1 : 0;
  return count;
}

}  // namespace worker::testing
