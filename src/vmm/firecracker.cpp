#include "vmm/firecracker.hpp"

#include "base/fault.hpp"
#include "base/log.hpp"
#include "vmm/console.hpp"
#include "vmm/firecracker_api.hpp"
#include "vmm/firecracker_command.hpp"

#include <sys/stat.h>

#include <cerrno>

#include <unistd.h>

namespace vmm {
namespace {

namespace fc = firecracker;

constexpr std::size_t console_bytes_per_s = std::size_t{512} * 1024;
constexpr std::size_t console_bytes_max = 1 << 20;
constexpr std::size_t errors_bytes_max = std::size_t{16} * 1024;
constexpr std::size_t tail_bytes = std::size_t{16} * 1024;
/// Overrides of the tap at load came with it, and the boot of a kernel with a PVH note.
constexpr fc::Version oldest{1, 12};
/// For the calls that make a machine: none of them waits for the guest.
constexpr std::chrono::milliseconds configure_patience(10'000);

/// Blocking. All of `from`, at most `bytes_max`, becomes all of `into`; both regular files.
base::Result<void> copy_file(int from, int into, std::uint64_t bytes_max) {
  struct stat info{};
  if (::fstat(from, &info) != 0) return base::fail_errno("measure a device state");
  auto const size = static_cast<std::uint64_t>(info.st_size);
  if (!S_ISREG(info.st_mode) || size == 0 || size > bytes_max)
    return base::fail(base::Code::unavailable, "the device state is none of such a machine");
  if (::ftruncate(into, 0) != 0) return base::fail_errno("empty a device state");
  std::vector<char> buffer(std::size_t{64} * 1024);
  for (std::uint64_t at = 0; at < size;) {
    auto const got = ::pread(from, buffer.data(), buffer.size(), static_cast<off_t>(at));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return base::fail_errno("read a device state");
    if (got == 0) return base::fail(base::Code::unavailable, "the device state became shorter");
    auto const put =
        ::pwrite(into, buffer.data(), static_cast<std::size_t>(got), static_cast<off_t>(at));
    if (put != got) return base::fail_errno("write a device state");
    at += static_cast<std::uint64_t>(got);
  }
  return {};
}

class FirecrackerVmm final : public Vmm {
 public:
  static base::Result<std::unique_ptr<FirecrackerVmm>> take(asio::any_io_executor executor,
                                                            Launcher& launcher,
                                                            std::uint32_t slot,
                                                            Process process);
  FirecrackerVmm(asio::any_io_executor executor,
                 Launcher& launcher,
                 std::uint32_t slot,
                 std::int32_t pid,
                 Descriptor pidfd,
                 Descriptor control,
                 os::Fd exchange);

  /// Is it one, and new enough?
  async::Task<void> greet(base::Deadline deadline);
  async::Task<void> configure(fc::Spec spec, base::Deadline deadline);

  std::int32_t pid() const noexcept override { return pid_; }

  async::Task<void> pause(base::Deadline deadline) override;
  async::Task<void> resume(base::Deadline deadline) override;
  async::Task<void> capture(os::FdRef state, base::Deadline deadline) override;
  async::Task<void> restore(os::FdRef state, base::Deadline deadline) override;

  async::Task<bool> stopped(base::Deadline deadline) override;

  bool stalled() const noexcept override { return false; }

  asio::awaitable<void> wait_gone() override;
  async::Task<Exit> kill() override;

  std::string console(std::size_t bytes_max) const override { return console_.tail(bytes_max); }

  asio::awaitable<void> close() override;

 private:
  async::Task<void> run(fc::Step step, base::Deadline deadline);
  asio::awaitable<void> watch_process();
  asio::awaitable<void> drain(Descriptor from, ConsoleRing* into);
  asio::awaitable<void> settle();

  Launcher& launcher_;
  std::uint32_t slot_;
  std::int32_t pid_;
  Descriptor pidfd_;
  os::Fd exchange_;
  ConsoleRing console_{console_bytes_max};
  ConsoleRing errors_{errors_bytes_max};
  fc::Client control_;
  bool gone_ = false;
  bool asked_ = false;
  std::optional<Exit> exit_;
  async::Signal changed_;
  async::Turnstile ending_;
  async::TaskGroup tasks_;
};

FirecrackerVmm::FirecrackerVmm(asio::any_io_executor executor,
                               Launcher& launcher,
                               std::uint32_t slot,
                               std::int32_t pid,
                               Descriptor pidfd,
                               Descriptor control,
                               os::Fd exchange)
    : launcher_(launcher),
      slot_(slot),
      pid_(pid),
      pidfd_(std::move(pidfd)),
      exchange_(std::move(exchange)),
      control_(executor, std::move(control)),
      changed_(executor),
      ending_(executor),
      tasks_(executor) {}

base::Result<std::unique_ptr<FirecrackerVmm>> FirecrackerVmm::take(asio::any_io_executor executor,
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
  auto vmm = std::make_unique<FirecrackerVmm>(executor,
                                              launcher,
                                              slot,
                                              process.pid,
                                              std::move(*pidfd),
                                              std::move(*control),
                                              std::move(process.exchange));
  vmm->tasks_.spawn("watch the VMM", vmm->watch_process());
  vmm->tasks_.spawn("read the console", vmm->drain(std::move(*console), &vmm->console_));
  if (errors)
    vmm->tasks_.spawn("read the VMM's errors", vmm->drain(std::move(*errors), &vmm->errors_));
  return vmm;
}

asio::awaitable<void> FirecrackerVmm::watch_process() {
  co_await pidfd_.wait_readable();
  gone_ = true;
  changed_.notify_all();
}

asio::awaitable<void> FirecrackerVmm::drain(Descriptor from, ConsoleRing* into) {
  Pace pace(console_bytes_per_s);
  std::vector<char> buffer(std::size_t{16} * 1024);
  for (;;) {
    auto const got = co_await from.read_some(buffer);
    if (!got || *got == 0) break;
    into->append(std::string_view(buffer.data(), *got));
    if (!gone_) co_await pace.took(*got);
  }
}

async::Task<void> FirecrackerVmm::run(fc::Step step, base::Deadline deadline) {
  auto const done = co_await control_.call(
      std::move(step.method), std::move(step.path), std::move(step.body), deadline);
  if (!done) co_return std::unexpected(done.error());
  co_return base::Result<void>();
}

async::Task<void> FirecrackerVmm::greet(base::Deadline deadline) {
  auto const answer = co_await control_.call("GET", "/version", {}, deadline);
  if (!answer) co_return std::unexpected(answer.error());
  auto const* object = answer->if_object();
  auto const* field = object ? object->if_contains("firecracker_version") : nullptr;
  auto const* text = field ? field->if_string() : nullptr;
  auto const version = text ? fc::parse_version(std::string_view(*text)) : std::nullopt;
  if (!version)
    co_return base::fail(base::Code::internal, "the virtual machine's monitor is no Firecracker");
  if (*version < oldest) {
    co_return base::fail(base::Code::unavailable,
                         fmt::format("Firecracker {}.{} is too old; at least {}.{} is needed",
                                     version->major,
                                     version->minor,
                                     oldest.major,
                                     oldest.minor));
  }
  co_return base::Result<void>();
}

async::Task<void> FirecrackerVmm::configure(fc::Spec spec, base::Deadline deadline) {
  for (auto& step : fc::boot_steps(spec)) {
    auto const what = fmt::format("{} {}", step.method, step.path);
    auto done = co_await run(std::move(step), deadline);
    if (!done) co_return base::passing(done, what);
  }
  co_return base::Result<void>();
}

async::Task<void> FirecrackerVmm::pause(base::Deadline deadline) {
  co_return co_await run(fc::pause_step(), deadline);
}

async::Task<void> FirecrackerVmm::resume(base::Deadline deadline) {
  co_return co_await run(fc::resume_step(), deadline);
}

async::Task<void> FirecrackerVmm::capture(os::FdRef state, base::Deadline deadline) {
  if (SPACE_FAULT("vmm.firecracker_capture.begin"))
    co_return base::fail(base::Code::internal, "told to fail");
  auto step = co_await pause(deadline);
  if (!step) co_return base::passing(step, "stop the machine");
  step = co_await run(fc::snapshot_step(), deadline);
  if (!step) co_return base::passing(step, "capture the machine");
  if (SPACE_FAULT("vmm.firecracker_capture.written"))
    co_return base::fail(base::Code::internal, "told to fail");
  auto copied = co_await async::blocking([from = exchange_.get(), into = state.get()] {
    return copy_file(from, into, fc::state_bytes_max);
  });
  if (!copied) co_return base::passing(copied, "keep the machine's state");
  co_return base::Result<void>();
}

async::Task<void> FirecrackerVmm::restore(os::FdRef state, base::Deadline deadline) {
  if (SPACE_FAULT("vmm.firecracker_restore.begin"))
    co_return base::fail(base::Code::internal, "told to fail");
  auto copied = co_await async::blocking([from = state.get(), into = exchange_.get()] {
    return copy_file(from, into, fc::state_bytes_max);
  });
  if (!copied) co_return base::passing(copied, "hand over the machine's state");
  auto step = co_await run(fc::load_step(), deadline);
  // A state that does not fit is refused, and the process exits by itself.
  if (!step && step.error().code() == base::Code::internal) {
    co_return base::fail(base::Code::unavailable,
                         "the virtual machine refused its state, which is damaged or not one of "
                         "such a machine",
                         step.error().detail());
  }
  if (!step) co_return base::passing(step, "load the machine's state");
  if (SPACE_FAULT("vmm.firecracker_restore.loaded"))
    co_return base::fail(base::Code::internal, "told to fail");
  step = co_await resume(deadline);
  if (!step) co_return base::passing(step, "let the restored machine go on");
  co_return base::Result<void>();
}

async::Task<bool> FirecrackerVmm::stopped(base::Deadline deadline) {
  auto const answer = co_await control_.call("GET", "/", {}, deadline);
  if (!answer) co_return std::unexpected(answer.error());
  auto const* object = answer->if_object();
  auto const* state = object ? object->if_contains("state") : nullptr;
  if (!state || !state->is_string())
    co_return base::fail(base::Code::internal, "the virtual machine's answer makes no sense");
  co_return state->get_string() == "Paused";
}

asio::awaitable<void> FirecrackerVmm::wait_gone() {
  while (!gone_)
    co_await changed_.wait();
}

/// What it wrote last is in pipes that have no end, because others hold them open: time enough for
/// what is already there.
asio::awaitable<void> FirecrackerVmm::settle() {
  for (auto seen = console_.written() + 1; seen != console_.written();) {
    seen = console_.written();
    co_await async::sleep_for(std::chrono::milliseconds(10));
  }
}

async::Task<Exit> FirecrackerVmm::kill() {
  auto const turn = co_await ending_.enter();
  if (exit_) co_return *exit_;
  if (!gone_) asked_ = true;
  if (gone_)
    co_await async::run_until(base::system_clock().in(std::chrono::milliseconds(200)), settle());
  auto const end = co_await launcher_.end(slot_);
  if (!end) co_return std::unexpected(end.error());
  auto const tail = console_.tail(tail_bytes);
  exit_ = fc::exit_of({*end, asked_, {}, false, tail});
  if (exit_->cause == ExitCause::crashed || exit_->cause == ExitCause::unknown) {
    base::log::warn("vmm_ended_badly",
                    {{"slot", slot_},
                     {"what", exit_->detail},
                     {"wait_status", end->wait_status},
                     {"errors", printable_tail(errors_.tail(4096), 10, 2048)}});
  }
  co_return *exit_;
}

asio::awaitable<void> FirecrackerVmm::close() {
  control_.close();
  tasks_.cancel();
  co_await tasks_.join();
}

}  // namespace

std::string_view name_of(Engine engine) noexcept {
  return engine == Engine::firecracker ? "firecracker" : "qemu";
}

async::Task<std::unique_ptr<Vmm>> FirecrackerDriver::boot(BootSpec spec) {
  if (spec.accelerator != Accelerator::kvm)
    co_return base::fail(base::Code::invalid_argument, "Firecracker runs machines under KVM alone");
  spec.engine = Engine::firecracker;
  auto const slot = spec.slot;
  auto const start = spec.start;
  fc::Spec const wanted{.vcpus = spec.vcpus,
                        .memory_mib = spec.memory_mib,
                        .disk_bytes_per_s_max = limits_.bytes_per_s,
                        .disk_ops_per_s_max = limits_.ops_per_s};
  auto process = co_await launcher_.start(std::move(spec));
  if (!process) co_return base::passing(process, "start the virtual machine");
  auto vmm = FirecrackerVmm::take(executor_, launcher_, slot, std::move(*process));
  if (!vmm) co_return std::unexpected(std::move(vmm.error()));
  auto const deadline = base::system_clock().in(configure_patience);
  auto ready = co_await (*vmm)->greet(deadline);
  if (ready && start != MachineStart::restore) ready = co_await (*vmm)->configure(wanted, deadline);
  if (ready) co_return std::unique_ptr<Vmm>(std::move(*vmm));
  // All or nothing. An end that fails is the slot's owner's: it ends every slot that it gives back.
  auto const ended = co_await (*vmm)->kill();
  if (!ended) base::log::warn("vmm_not_ended", {{"slot", slot}, {"why", ended.error().message()}});
  co_await (*vmm)->close();
  co_return base::passing(ready, "configure the virtual machine");
}

async::Task<std::unique_ptr<Vmm>> FirecrackerDriver::adopt(std::uint32_t slot) {
  auto process = co_await launcher_.attach(slot);
  if (!process) co_return base::passing(process, "attach to the virtual machine");
  co_return co_await take_over(slot, std::move(*process));
}

async::Task<std::unique_ptr<Vmm>> FirecrackerDriver::take_over(std::uint32_t slot,
                                                               Process process) {
  auto vmm = FirecrackerVmm::take(executor_, launcher_, slot, std::move(process));
  if (!vmm) co_return std::unexpected(std::move(vmm.error()));
  auto greeted = co_await (*vmm)->greet(base::system_clock().in(configure_patience));
  if (greeted) co_return std::unique_ptr<Vmm>(std::move(*vmm));
  co_await (*vmm)->close();
  co_return base::passing(greeted, "attach to the virtual machine");
}

}  // namespace vmm
