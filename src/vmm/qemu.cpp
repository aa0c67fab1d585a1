#include "vmm/qemu.hpp"

#include "base/fault.hpp"
#include "base/log.hpp"
#include "vmm/changed_pages.hpp"
#include "vmm/console.hpp"
#include "vmm/qmp.hpp"

#include <sys/mman.h>

#include <charconv>

#include <fcntl.h>
#include <unistd.h>

namespace vmm {
namespace {

// A guest that floods its console costs the loop no more than this; QEMU throws the rest away.
constexpr std::size_t console_bytes_per_s = std::size_t{512} * 1024;
constexpr std::size_t console_bytes_max = 1 << 20;
constexpr std::size_t errors_bytes_max = std::size_t{16} * 1024;
constexpr std::size_t tail_bytes = std::size_t{16} * 1024;
constexpr char state_name[] = "state";
constexpr std::chrono::milliseconds poll_interval(1);
constexpr int state_set = 2;  // number 1 holds the disk
constexpr std::size_t state_bytes_max = std::size_t{16} << 20;

int open_for_writing(os::Fd const& file) {
  return ::open(fmt::format("/proc/self/fd/{}", file.get()).c_str(), O_WRONLY | O_CLOEXEC);
}

base::Result<std::string> read_state(os::Fd const& file) {
  auto const size = ::lseek(file.get(), 0, SEEK_END);
  if (size <= 0 || static_cast<std::size_t>(size) > state_bytes_max)
    return base::fail(base::Code::internal, "the virtual machine's state is empty or too long");
  std::string bytes(static_cast<std::size_t>(size), '\0');
  if (::pread(file.get(), bytes.data(), bytes.size(), 0) != size)
    return base::fail_errno("read the virtual machine's state");
  return bytes;
}

/// What QEMU writes as devices' state alone is a migration stream without the section that names
/// the machine and its capabilities, which a machine that waits for a migration wants to see first.
/// The same of both as in a capture: so one restore() loads either.
base::Result<std::string> as_migration(std::string devices) {
  using namespace std::string_view_literals;
  constexpr auto head = "QEVM\0\0\0\x03"sv;
  constexpr auto machine =
      "\x07\0\0\0\x07microvm"
      "\x05\x1a"
      "configuration/capabilities\0\0\0\x01\0\0\0\x01\x0f"
      "x-ignore-shared"sv;
  if (!devices.starts_with(head))
    return base::fail(base::Code::internal, "the virtual machine's state is none");
  return devices.insert(head.size(), machine);
}

/// "Host virtual address for 0x0 (m) is 0x7f…": `m` is the guest's memory (qemu_command.cpp).
base::Result<std::uint64_t> address_in(std::string_view answer) {
  constexpr std::string_view before = " (m) is 0x";
  auto const at = answer.find(before);
  std::uint64_t address = 0;
  bool good = false;
  if (at != std::string_view::npos) {
    auto const digits = answer.substr(at + before.size());
    auto const [end, problem] =
        std::from_chars(digits.data(), digits.data() + digits.size(), address, 16);
    good = problem == std::errc() && end != digits.data() && address % page_bytes == 0;
  }
  if (good) return address;
  return base::fail(base::Code::internal,
                    "the virtual machine does not tell where its guest's memory is",
                    std::string(answer.substr(0, 100)));
}

class QemuVmm final : public Vmm {
 public:
  static base::Result<std::unique_ptr<Vmm>> take(asio::any_io_executor executor,
                                                 Launcher& launcher,
                                                 std::uint32_t slot,
                                                 Process process);
  QemuVmm(asio::any_io_executor executor,
          Launcher& launcher,
          std::uint32_t slot,
          std::int32_t pid,
          Descriptor pidfd,
          Descriptor control);

  std::int32_t pid() const noexcept override { return pid_; }

  async::Task<void> pause(base::Deadline deadline) override;
  async::Task<void> resume(base::Deadline deadline) override;

  async::Task<void> capture(os::FdRef state, base::Deadline deadline) override;
  async::Task<void> restore(os::FdRef state, base::Deadline deadline) override;

  async::Task<std::string> save_devices(base::Deadline deadline) override;
  async::Task<std::uint64_t> memory_address(base::Deadline deadline) override;
  async::Task<bool> stopped(base::Deadline deadline) override;

  bool stalled() const noexcept override { return stalled_; }

  asio::awaitable<void> wait_gone() override;
  async::Task<Exit> kill() override;

  std::string console(std::size_t bytes_max) const override { return console_.tail(bytes_max); }

  asio::awaitable<void> close() override;

 private:
  /// One command whose answer says nothing.
  async::Task<void> command(std::string name, qmp::json::object arguments, base::Deadline deadline);
  /// "status" in what `name` (a query) answers.
  async::Task<std::string> status_of(std::string name, base::Deadline deadline);
  /// Only what is no file of its own goes through the stream, and the stream goes to or comes from
  /// `state`.
  async::Task<void> prepare_migration(os::FdRef state, base::Deadline deadline);
  async::Task<void> wait_written(base::Deadline deadline);
  void on_event(qmp::Event const& event);
  asio::awaitable<void> watch_process();
  asio::awaitable<void> converse();
  asio::awaitable<void> drain(Descriptor from, ConsoleRing* into);
  asio::awaitable<void> wait_drained();

  Launcher& launcher_;
  std::uint32_t slot_;
  std::int32_t pid_;
  Descriptor pidfd_;
  ConsoleRing console_{console_bytes_max};
  ConsoleRing errors_{errors_bytes_max};
  qmp::Client control_;
  std::optional<std::string> shutdown_reason_;
  bool panicked_ = false;
  bool stalled_ = false;
  bool gone_ = false;
  int readers_ = 0;  // that have not seen their end yet
  bool asked_ = false;
  std::optional<Exit> exit_;
  async::Signal changed_;
  async::Turnstile ending_;
  async::TaskGroup tasks_;
};

QemuVmm::QemuVmm(asio::any_io_executor executor,
                 Launcher& launcher,
                 std::uint32_t slot,
                 std::int32_t pid,
                 Descriptor pidfd,
                 Descriptor control)
    : launcher_(launcher),
      slot_(slot),
      pid_(pid),
      pidfd_(std::move(pidfd)),
      control_(executor, std::move(control), [this](qmp::Event const& event) { on_event(event); }),
      changed_(executor),
      ending_(executor),
      tasks_(executor) {}

base::Result<std::unique_ptr<Vmm>> QemuVmm::take(asio::any_io_executor executor,
                                                 Launcher& launcher,
                                                 std::uint32_t slot,
                                                 Process process) {
  auto pidfd = Descriptor::adopt(executor, std::move(process.pidfd));
  if (!pidfd) return base::passing(pidfd, "watch the VMM's process");
  auto control = Descriptor::adopt(executor, std::move(process.control));
  if (!control) return base::passing(control, "open the VMM's control socket");
  auto console = Descriptor::adopt(executor, std::move(process.console));
  if (!console) return base::passing(console, "open the guest's console");
  std::optional<Descriptor> errors;
  if (process.errors) {
    auto adopted = Descriptor::adopt(executor, std::move(process.errors));
    if (!adopted) return base::passing(adopted, "open the VMM's error output");
    errors = std::move(*adopted);
  }
  auto vmm = std::make_unique<QemuVmm>(
      executor, launcher, slot, process.pid, std::move(*pidfd), std::move(*control));
  vmm->readers_ = errors ? 3 : 2;
  vmm->tasks_.spawn("watch the VMM", vmm->watch_process());
  vmm->tasks_.spawn("talk QMP", vmm->converse());
  vmm->tasks_.spawn("read the console", vmm->drain(std::move(*console), &vmm->console_));
  if (errors)
    vmm->tasks_.spawn("read the VMM's errors", vmm->drain(std::move(*errors), &vmm->errors_));
  return std::unique_ptr<Vmm>(std::move(vmm));
}

void QemuVmm::on_event(qmp::Event const& event) {
  if (event.name == "GUEST_PANICKED") panicked_ = true;
  // It says "stop" with an error that stopped the machine (werror=stop), "report" with one the
  // guest was told of.
  if (event.name == "BLOCK_IO_ERROR") {
    auto const* action = event.data.if_contains("action");
    stalled_ = stalled_ || (action && action->is_string() && action->as_string() == "stop");
  }
  if (event.name == "RESUME") stalled_ = false;
  if (event.name != "SHUTDOWN" || shutdown_reason_) return;
  auto const* reason = event.data.if_contains("reason");
  auto const* text = reason ? reason->if_string() : nullptr;
  if (text) shutdown_reason_ = std::string(text->data(), std::min<std::size_t>(text->size(), 64));
}

asio::awaitable<void> QemuVmm::watch_process() {
  co_await pidfd_.wait_readable();
  gone_ = true;
  changed_.notify_all();
}

asio::awaitable<void> QemuVmm::converse() {
  co_await control_.run();
  --readers_;
  changed_.notify_all();
}

asio::awaitable<void> QemuVmm::drain(Descriptor from, ConsoleRing* into) {
  Pace pace(console_bytes_per_s);
  std::vector<char> buffer(std::size_t{16} * 1024);
  for (;;) {
    auto const got = co_await from.read_some(buffer);
    if (!got || *got == 0) break;
    into->append(std::string_view(buffer.data(), *got));
    if (!gone_) co_await pace.took(*got);
  }
  --readers_;
  changed_.notify_all();
}

async::Task<void> QemuVmm::pause(base::Deadline deadline) {
  co_return co_await command("stop", {}, deadline);
}

async::Task<void> QemuVmm::resume(base::Deadline deadline) {
  co_return co_await command("cont", {}, deadline);
}

async::Task<void> QemuVmm::command(std::string name,
                                   qmp::json::object arguments,
                                   base::Deadline deadline) {
  auto const done = co_await control_.execute(std::move(name), std::move(arguments), deadline);
  if (!done) co_return std::unexpected(done.error());
  co_return base::Result<void>();
}

async::Task<std::string> QemuVmm::status_of(std::string name, base::Deadline deadline) {
  auto const answer = co_await control_.execute(name, {}, deadline);
  if (!answer) co_return std::unexpected(answer.error());
  auto const* object = answer->if_object();
  auto const* status = object ? object->if_contains("status") : nullptr;
  auto const* text = status ? status->if_string() : nullptr;
  // query-migrate has no status before the migration's thread has begun.
  if (!object || (status && !text))
    co_return base::fail(base::Code::internal, "the virtual machine's answer makes no sense", name);
  co_return text ? std::string(text->data(), std::min<std::size_t>(text->size(), 32))
                 : std::string();
}

async::Task<void> QemuVmm::prepare_migration(os::FdRef state, base::Deadline deadline) {
  qmp::json::array capabilities{
      qmp::json::object{{"capability", "x-ignore-shared"}, {"state", true}}};
  auto const set = co_await command(
      "migrate-set-capabilities", {{"capabilities", std::move(capabilities)}}, deadline);
  if (!set) co_return std::unexpected(set.error());
  co_return co_await control_.pass(state_name, state, deadline);
}

async::Task<void> QemuVmm::wait_written(base::Deadline deadline) {
  for (;;) {
    auto const status = co_await status_of("query-migrate", deadline);
    if (!status) co_return std::unexpected(status.error());
    if (*status == "completed") co_return base::Result<void>();
    if (*status == "failed" || *status == "cancelled") {
      co_return base::fail(
          base::Code::internal, "the virtual machine could not write its state", *status);
    }
    co_await async::sleep_for(poll_interval);
  }
}

async::Task<void> QemuVmm::capture(os::FdRef state, base::Deadline deadline) {
  if (SPACE_FAULT("vmm.capture.begin")) co_return base::fail(base::Code::internal, "told to fail");
  auto step = co_await pause(deadline);
  if (!step) co_return base::passing(step, "stop the machine");
  step = co_await prepare_migration(state, deadline);
  if (!step) co_return base::passing(step, "prepare the capture");
  step = co_await command("migrate", {{"uri", std::string("fd:") + state_name}}, deadline);
  if (!step) co_return base::passing(step, "begin the capture");
  step = co_await wait_written(deadline);
  if (step && SPACE_FAULT("vmm.capture.written"))
    step = base::fail(base::Code::internal, "told to fail");
  if (step) co_return step;
  // So that a later try does not find this one under way.
  auto const cancelled = co_await command(
      "migrate_cancel", {}, base::system_clock().in(std::chrono::milliseconds(500)));
  if (!cancelled) base::log::warn("capture_not_cancelled", {{"why", cancelled.error().message()}});
  co_return base::passing(step, "capture the machine");
}

async::Task<void> QemuVmm::restore(os::FdRef state, base::Deadline deadline) {
  if (SPACE_FAULT("vmm.restore.begin")) co_return base::fail(base::Code::internal, "told to fail");
  // QEMU reads on from where the file stands, and a capture through it leaves that at its end.
  static_cast<void>(::lseek(state.get(), 0, SEEK_SET));
  auto step = co_await prepare_migration(state, deadline);
  if (!step) co_return base::passing(step, "prepare the restore");
  step = co_await command("migrate-incoming", {{"uri", std::string("fd:") + state_name}}, deadline);
  if (!step) co_return base::passing(step, "begin the restore");
  // A state that does not fit ends the process, and with it the control socket.
  for (;;) {
    auto status = co_await status_of("query-status", deadline);
    if (!status && status.error().code() == base::Code::unavailable) {
      co_return base::fail(base::Code::unavailable,
                           "the virtual machine ended while loading its state, which is damaged or "
                           "not one of such a machine",
                           status.error().message());
    }
    if (!status) co_return base::passing(status, "load the machine's state");
    if (*status != "inmigrate") break;
    co_await async::sleep_for(poll_interval);
  }
  if (SPACE_FAULT("vmm.restore.loaded")) co_return base::fail(base::Code::internal, "told to fail");
  step = co_await resume(deadline);
  if (!step) co_return base::passing(step, "let the restored machine go on");
  co_return base::Result<void>();
}

async::Task<std::string> QemuVmm::save_devices(base::Deadline deadline) {
  if (SPACE_FAULT("vmm.save.begin")) co_return base::fail(base::Code::internal, "told to fail");
  // Its own kind of file, because QEMU wants one that is open for writing alone.
  os::Fd const kept(::memfd_create("state", MFD_CLOEXEC));
  os::Fd const given(kept ? open_for_writing(kept) : -1);
  if (!given) co_return base::fail_errno("make a file for the machine's state");
  auto step = co_await control_.pass_as_file(state_set, given, deadline);
  if (!step) co_return base::passing(step, "pass a file for the machine's state");
  // Not live: it would give the disk up.
  step = co_await command("xen-save-devices-state",
                          {{"filename", fmt::format("/dev/fdset/{}", state_set)}, {"live", false}},
                          deadline);
  auto removed = co_await command("remove-fd", {{"fdset-id", state_set}}, deadline);
  if (!step) co_return base::passing(step, "save the machine's state");
  if (!removed) co_return base::passing(removed, "take the file of the machine's state back");
  if (SPACE_FAULT("vmm.save.written")) co_return base::fail(base::Code::internal, "told to fail");
  auto written = read_state(kept);
  if (!written) co_return written;
  co_return as_migration(std::move(*written));
}

async::Task<std::uint64_t> QemuVmm::memory_address(base::Deadline deadline) {
  auto answer =
      co_await control_.execute("human-monitor-command", {{"command-line", "gpa2hva 0"}}, deadline);
  if (!answer) co_return base::passing(answer, "ask where the guest's memory is");
  auto const* text = answer->if_string();
  co_return address_in(text ? std::string_view(*text) : std::string_view());
}

async::Task<bool> QemuVmm::stopped(base::Deadline deadline) {
  auto status = co_await status_of("query-status", deadline);
  if (!status) co_return base::passing(status, "ask whether the machine runs");
  co_return *status != "running";
}

asio::awaitable<void> QemuVmm::wait_gone() {
  while (!gone_)
    co_await changed_.wait();
}

/// What the process wrote last is still in its sockets when its end is known; all readers end with
/// it.
asio::awaitable<void> QemuVmm::wait_drained() {
  while (tasks_.running() > 0)
    co_await changed_.wait();
}

async::Task<Exit> QemuVmm::kill() {
  auto const turn = co_await ending_.enter();
  if (exit_) co_return *exit_;
  if (!gone_) asked_ = true;
  if (gone_) {
    // Bounded: somebody else may hold the other end of a pipe open.
    co_await async::run_until(base::system_clock().in(std::chrono::milliseconds(200)),
                              wait_drained());
  }
  auto const end = co_await launcher_.end(slot_);
  if (!end) co_return std::unexpected(end.error());
  auto const tail = console_.tail(tail_bytes);
  exit_ = explain_exit({*end, asked_, shutdown_reason_, panicked_, tail});
  if (exit_->cause == ExitCause::crashed || exit_->cause == ExitCause::unknown) {
    base::log::warn("vmm_ended_badly",
                    {{"slot", slot_},
                     {"what", exit_->detail},
                     {"wait_status", end->wait_status},
                     {"errors", printable_tail(errors_.tail(4096), 10, 2048)}});
  }
  co_return *exit_;
}

asio::awaitable<void> QemuVmm::close() {
  control_.close();
  tasks_.cancel();
  co_await tasks_.join();
}

}  // namespace

std::string_view name_of(Accelerator accelerator) noexcept {
  return accelerator == Accelerator::kvm ? "kvm" : "tcg";
}

async::Task<std::unique_ptr<Vmm>> QemuDriver::boot(BootSpec spec) {
  auto const slot = spec.slot;
  auto process = co_await launcher_.start(std::move(spec));
  if (!process) co_return base::passing(process, "start the virtual machine");
  co_return QemuVmm::take(executor_, launcher_, slot, std::move(*process));
}

async::Task<std::unique_ptr<Vmm>> QemuDriver::adopt(std::uint32_t slot) {
  auto process = co_await launcher_.attach(slot);
  if (!process) co_return base::passing(process, "attach to the virtual machine");
  co_return take_over(slot, std::move(*process));
}

base::Result<std::unique_ptr<Vmm>> QemuDriver::take_over(std::uint32_t slot, Process process) {
  return QemuVmm::take(executor_, launcher_, slot, std::move(process));
}

}  // namespace vmm
