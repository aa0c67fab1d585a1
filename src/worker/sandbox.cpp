#include "worker/sandbox.hpp"

#include "base/log.hpp"
#include "worker/agent_client.hpp"

namespace worker {

namespace asio = boost::asio;

namespace {

std::string_view name_of(Sandbox::State state) noexcept {
  switch (state) {
    case Sandbox::State::starting:
      return "starting";
    case Sandbox::State::warm:
      return "warm";
    case Sandbox::State::running:
      return "running";
    case Sandbox::State::paused:
      return "paused";
    case Sandbox::State::suspending:
      return "suspending";
    case Sandbox::State::suspended:
      return "suspended";
    case Sandbox::State::restoring:
      return "restoring";
    case Sandbox::State::ending:
      return "ending";
    case Sandbox::State::ended:
      return "ended";
  }
  return "unknown";
}

constexpr std::chrono::milliseconds agent_patience(5'000);

/// Of a sandbox found again, as far as the journal tells: what its files say comes with
/// find_again().
Sandbox::State state_of(JournalEntry const& entry, Sandbox::Found found) {
  if (entry.internal) return Sandbox::State::ending;
  if (entry.phase == "suspending") return Sandbox::State::suspending;
  if (entry.phase == "suspended") return Sandbox::State::suspended;
  if (entry.phase == "restoring") return Sandbox::State::restoring;
  if (found != Sandbox::Found::running) return Sandbox::State::ending;
  if (entry.phase == "paused") return Sandbox::State::paused;
  return entry.phase == "running" ? Sandbox::State::running : Sandbox::State::ending;
}

}  // namespace

Sandbox::Sandbox(Host& host, New admitted)
    : host_(host),
      request_(std::move(admitted.request)),
      reservation_(std::move(admitted.reservation)),
      received_(admitted.received),
      accelerator_(admitted.accelerator),
      limits_(admitted.limits.value_or(host.boot_limits)),
      base_(std::move(admitted.base)),
      recording_(std::move(admitted.recording)),
      wait_warm_(admitted.warm),
      changing_(host.executor),
      talking_(host.executor),
      changed_(host.executor) {
  entry_.sandbox = request_.sandbox;
  entry_.epoch = request_.epoch;
  entry_.build = request_.build;
  entry_.vcpus = request_.vcpus;
  entry_.memory_mib = request_.memory_mib;
  entry_.disk_mib = request_.disk_mib;
  entry_.reserved_memory_mib = reservation_.held().memory_mib;
  entry_.init_key = base::random_hex(32);
  entry_.internal = admitted.internal;
  if (request_.policy) entry_.policy = *request_.policy;
  entry_.credentials = request_.credentials;
  mark("admitted");
}

Sandbox::Sandbox(Host& host, JournalEntry found_again, Reservation reservation, Found found)
    : host_(host),
      entry_(std::move(found_again)),
      reservation_(std::move(reservation)),
      state_(state_of(entry_, found)),
      found_(found),
      adopted_(true),
      lived_before_(entry_.phase == "running" || entry_.phase == "paused" ||
                    entry_.phase == "suspending"),
      slot_is_ours_(found != Found::nothing),
      changing_(host.executor),
      talking_(host.executor),
      changed_(host.executor) {
  if (entry_.phase == "starting") {
    // Our kill of what it began is no cause of its own.
    end_asked_ = true;
    blame("start_failed", "the worker was restarted during the start; try again");
    entry_.error_code = base::name_of(base::Code::unavailable);
  }
  // Found running, with its end decided by the worker before us.
  if (entry_.phase == "ending") end_asked_ = !entry_.cause.empty();
}

asio::awaitable<void> Sandbox::live() {
  if (!adopted_) co_await start();
  if (state_ == State::warm) {
    co_await wait_as_warm();
    if (claimed_) co_await start();
  }
  if (adopted_) co_await find_again();
  while (state_ == State::running || state_ == State::paused || state_ == State::suspended) {
    co_await watch();
    if (end_asked_ || !pending_ || !entry_.cause.empty()) break;
    co_await carry_out(std::exchange(pending_, nullptr));
  }
  co_await end();
}

asio::awaitable<void> Sandbox::close() {
  if (gateway_) co_await gateway_->close();
  if (vmm_) co_await vmm_->close();
}

void Sandbox::ask_end(std::string cause, std::string detail) {
  if (state_ == State::ending || state_ == State::ended || end_asked_) return;
  end_asked_ = true;
  blame(std::move(cause), std::move(detail));
  changed_.notify_all();
}

asio::awaitable<void> Sandbox::wait_end_asked() {
  while (!end_asked_)
    co_await changed_.wait();
}

asio::awaitable<void> Sandbox::wait_asked() {
  while (!end_asked_ && !pending_)
    co_await changed_.wait();
}

void Sandbox::become(State state) {
  state_ = state;
  changed_.notify_all();
}

void Sandbox::blame(std::string cause, std::string detail) {
  if (!entry_.cause.empty()) return;
  entry_.cause = std::move(cause);
  entry_.detail = std::move(detail);
}

void Sandbox::mark(std::string step) {
  using Milliseconds = std::chrono::duration<double, std::milli>;
  entry_.timeline.push_back(
      {std::move(step), Milliseconds(base::system_clock().steady_now() - received_).count()});
}

async::Task<void> Sandbox::write_journal(std::string phase) {
  entry_.phase = std::move(phase);
  co_return co_await async::blocking(
      [journal = host_.journal, entry = entry_] { return journal.write(entry); });
}

wire::WorkerSandbox Sandbox::describe() const {
  wire::WorkerSandbox out;
  out.sandbox = entry_.sandbox;
  out.epoch = entry_.epoch;
  out.state = name_of(state_);
  out.build = entry_.build;
  out.vcpus = entry_.vcpus;
  out.memory_mib = entry_.memory_mib;
  out.disk_mib = entry_.disk_mib;
  out.vmm_pid = vmm_ ? vmm_->pid() : 0;
  out.resident_bytes = vmm_ ? resident_bytes_of(vmm_->pid()) : 0;
  out.started_by = entry_.started_by.empty() ? "cold boot" : entry_.started_by;
  out.timeline = entry_.timeline;
  out.suspended_bytes = entry_.suspended_bytes;
  out.lost_reason = entry_.lost_reason;
  return out;
}

std::string Sandbox::console(std::size_t bytes_max) const {
  return vmm_ ? vmm_->console(bytes_max) : std::string();
}

async::Task<void> Sandbox::set_token(std::string access_token) {
  if (state_ != State::running)
    co_return base::fail(base::Code::conflict, "the sandbox does not run");
  boost::json::object changes{{"accessToken", access_token}};
  co_return co_await tell_agent(std::move(changes));
}

/// The sandbox's own guest. While somebody waited for his turn, or hostd worked, the sandbox may
/// have left its slot to another one, whose guest must not hear our key.
async::Task<net::Stream> Sandbox::reach_guest() {
  auto const at = slot();
  auto const left = [&] { return !slot_is_ours_ || slot() != at; };
  if (left()) co_return base::fail(base::Code::conflict, "the sandbox does not run");
  auto reached = co_await host_.dialer.dial(at, wire::agent_port, agent_patience);
  if (left()) co_return base::fail(base::Code::conflict, "the sandbox does not run");
  if (!reached.stream)
    co_return base::fail(base::Code::unavailable, "the sandbox's agent cannot be reached");
  co_return std::move(reached.stream);
}

async::Task<void> Sandbox::tell_agent(boost::json::object changes) {
  auto const turn = co_await talking_.enter();
  auto stream = co_await reach_guest();
  if (!stream) co_return base::passing(stream);
  auto const nonce = base::random_hex(16);
  changes["init_key"] = entry_.init_key;
  changes["nonce"] = nonce;
  co_return co_await update_agent(
      std::move(*stream), std::move(changes), nonce, base::system_clock().in(agent_patience));
}

async::Task<std::string> Sandbox::metrics() {
  if (state_ != State::running)
    co_return base::fail(base::Code::conflict, "the sandbox does not run");
  auto stream = co_await reach_guest();
  if (!stream) co_return base::passing(stream);
  co_return co_await agent_metrics(
      std::move(*stream), entry_.init_key, base::system_clock().in(agent_patience));
}

}  // namespace worker
