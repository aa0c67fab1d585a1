#include "worker/gateway_link.hpp"

#include "base/fault.hpp"
#include "base/log.hpp"
#include "base/metric_names.hpp"
#include "os/host_addresses.hpp"
#include "os/host_resolvers.hpp"
#include "worker/metrics.hpp"

#include <fstream>
#include <sstream>

namespace worker {

namespace asio = boost::asio;

namespace {

constexpr std::size_t uuid_digits = 36;
constexpr std::chrono::milliseconds ping_every(10'000);
constexpr std::chrono::milliseconds start_patience(10'000);
constexpr std::chrono::milliseconds apply_patience(2'000);
constexpr std::chrono::milliseconds broker_patience(2'000);
constexpr std::chrono::milliseconds broker_pause(500);
constexpr std::chrono::milliseconds restart_pause(100);
constexpr std::size_t names_max = 8192;
constexpr std::chrono::minutes crash_window(10);
constexpr std::size_t crashes_max = 3;
constexpr std::uint32_t lease_seconds = 900;
constexpr std::chrono::seconds lease_half_life(lease_seconds / 2);
constexpr std::size_t event_bytes_max = 1 << 20;
/// Its texts are of a gateway's own making or of a policy, which bounds them.
constexpr std::size_t decision_bytes_max = 16 << 10;
constexpr std::size_t log_bytes_per_s = 16 * 1024;
constexpr int rules_unknown_max = 3;
constexpr char rules_altered[] = "somebody changed the packet rules of its slot";
constexpr char system_authorities[] = "/etc/ssl/certs/ca-certificates.crt";

base::Result<std::string> read_authorities(std::string const& path) {
  std::ifstream file(path.empty() ? system_authorities : path);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file || text.str().empty())
    return base::fail(
        base::Code::unavailable, "the authorities for upstream servers cannot be read", path);
  return text.str();
}

}  // namespace

std::string audit_record(std::string const& node,
                         std::string const& sandbox,
                         std::uint64_t epoch,
                         std::string const& time,
                         wire::GatewayDecision const& decision) {
  // Beside the time, which somebody may set: what passed since the host was started.
  auto const passed = base::system_clock().steady_now().time_since_epoch();
  boost::json::object record{
      {"time", time},
      {"monotonic_us", std::chrono::duration_cast<std::chrono::microseconds>(passed).count()},
      {"node", node},
      {"sandbox", sandbox},
      {"epoch", epoch}};
  for (auto const& [name, value] : wire::encode(decision).as_object()) {
    bool const empty = (value.is_string() && value.get_string().empty()) ||
                       (value.is_uint64() && value.get_uint64() == 0) ||
                       (value.is_int64() && value.get_int64() == 0);
    if (!empty) record[name] = value;
  }
  return wire::to_text(record);
}

GatewayLink::GatewayLink(GatewayHost host, Wanted wanted, TellGuest tell_guest)
    : host_(std::move(host)),
      wanted_(std::move(wanted)),
      words_(wanted_.policy, wanted_.credentials),
      tell_guest_(std::move(tell_guest)),
      changing_(host_.executor),
      writing_(host_.executor),
      changed_(host_.executor),
      tasks_(host_.executor) {}

asio::awaitable<void> start_spare_gateway(hostd::Client hostd, std::uint32_t slot) {
  auto const started =
      co_await async::blocking([hostd, slot] { return hostd.start_gateway(slot); });
  // One may have come with the slot.
  if (!started && started.error().code() != base::Code::conflict)
    base::log::warn("spare_gateway_not_started",
                    {{"slot", slot}, {"what", started.error().message()}});
}

void GatewayLink::begin(bool adopt) {
  guest_knows_one_ = adopt;
  if (!adopt) reach_.emplace();  // as slots are made
  tasks_.spawn("gateway", live(adopt ? From::predecessor : From::spare));
}

/// Whoever is cancelled may go on a little before it notices: a child begun then would be waited
/// for in vain.
void GatewayLink::spawn(std::string_view name, asio::awaitable<void> child) {
  if (!closing_) tasks_.spawn(name, std::move(child));
}

asio::awaitable<void> GatewayLink::wait_settled() {
  while (state_ == State::closed)
    co_await changed_.wait();
}

async::Task<void> GatewayLink::wait_open() {
  co_await wait_settled();
  if (state_ == State::off) co_return std::unexpected(*error_);
  co_return base::Result<void>();
}

asio::awaitable<void> GatewayLink::live(From from) {
  for (;;) {
    auto const connected = co_await connect(std::exchange(from, From::nothing));
    if (connected) {
      co_await serve();
    } else {
      base::log::warn("gateway_not_reached",
                      {{"sandbox", wanted_.sandbox},
                       {"what", connected.error().message()},
                       {"detail", connected.error().detail()}});
    }
    stream_.reset();
    if (state_ == State::off || closing_) co_return;  // it did not die of itself
    state_ = State::closed;
    changed_.notify_all();
    auto const now = base::system_clock().steady_now();
    crashes_.push_back(now);
    while (crashes_.front() < now - crash_window)
      crashes_.pop_front();
    base::metrics().count(base::metric::gateway_restarts);
    base::log::warn("gateway_lost", {{"sandbox", wanted_.sandbox}, {"times", crashes_.size()}});
    if (crashes_.size() >= crashes_max)
      co_return co_await switch_off("its gateway failed three times");
    co_await async::sleep_for(restart_pause);
  }
}

async::Task<void> GatewayLink::adopt_or_start(From from) {
  auto gateway = base::Result<hostd::Gateway>();
  if (from != From::nothing) {
    gateway = co_await async::blocking(
        [client = host_.hostd, slot = wanted_.slot] { return client.attach_gateway(slot); });
    if (!gateway && gateway.error().code() != base::Code::not_found)
      co_return base::passing(gateway);
  }
  bool const none = !gateway;
  bool const fresh = none || from == From::spare;
  // Before a gateway listens the slot refuses whatever this lets through.
  auto reach = domain::reach_of(wanted_.policy);
  if (!reach) {
    state_ = State::off;
    error_ = reach.error();
    changed_.notify_all();
    co_return base::passing(reach);
  }
  auto told = co_await let_through(std::move(*reach));
  if (!told) co_return base::passing(told);
  if (from != From::spare) {
    auto verified = co_await verify_rules();
    if (!verified) co_return verified;
  }
  if (none) {
    gateway = co_await async::blocking(
        [client = host_.hostd, slot = wanted_.slot]() -> base::Result<hostd::Gateway> {
          // One that does not answer any more, or whose start we never heard of.
          auto ended = client.end_gateway(slot);
          if (!ended) return std::unexpected(std::move(ended.error()));
          return client.start_gateway(slot);
        });
  }
  if (!gateway) co_return base::passing(gateway);
  gateway_user_ = gateway->user_id;
  auto stream = net::adopt_socket(host_.executor, std::move(gateway->control));
  if (!stream) co_return base::passing(stream);
  stream_ = std::move(*stream);
  if (gateway->errors) {
    auto log = vmm::Descriptor::adopt(host_.executor, std::move(gateway->errors));
    if (!log) co_return base::passing(log);
    spawn("gateway log", read_log(std::move(*log)));
  }
  if (!fresh) {
    wire::GatewayCommand command;
    command.policy = wanted_.policy;
    auto greeted = co_await send(std::move(command));
    if (!greeted) co_return greeted;
    wire::GatewayCommand question;
    question.names = true;
    co_return co_await send(std::move(question));
  }
  auto cleared = co_await clear_leases();
  if (!cleared) co_return base::passing(cleared);
  auto trusted = read_authorities(host_.config.upstream_ca_file);
  if (!trusted) co_return base::passing(trusted);
  co_return co_await send(start_command(std::move(*trusted)));
}

async::Task<void> GatewayLink::connect(From from) {
  if (SPACE_FAULT("worker.gateway.connect"))
    co_return base::fail(base::Code::internal, "a fault was injected here");
  auto reached = co_await adopt_or_start(from);
  if (!reached) co_return base::passing(reached, "start the gateway");
  leases_due_ = base::system_clock().steady_now();
  auto leased = co_await put_leases();
  // Requests that need a credential are refused meanwhile; tend() tries again.
  if (!leased)
    base::log::warn("leases_not_put",
                    {{"sandbox", wanted_.sandbox}, {"what", leased.error().message()}});
  co_return base::Result<void>();
}

wire::GatewayCommand GatewayLink::start_command(std::string trusted) const {
  wire::GatewayCommand command;
  auto& start = command.start.emplace();
  start.sandbox = wanted_.sandbox;
  start.policy = wanted_.policy;
  start.resolvers = host_.config.resolvers.empty() ? os::host_resolvers() : host_.config.resolvers;
  start.trusted_ca_pem = std::move(trusted);
  // The way out refuses them as well, as long as its rules stand.
  start.refused_networks = os::host_addresses();
  start.admitted_networks = host_.config.private_routes;
  start.names = names_;
  return command;
}

async::Task<void> GatewayLink::send(wire::GatewayCommand command) {
  auto const stream = stream_;
  if (!stream) co_return base::fail(base::Code::unavailable, "there is no gateway");
  auto const turn = co_await writing_.enter();
  auto const line = wire::encode_text(command) + "\n";
  co_return co_await stream->write_text(line);
}

/// Until the gateway is gone, or silent at its start.
asio::awaitable<void> GatewayLink::serve() {
  co_await async::race(read_events(), tend_and_watch());
  if (stream_) stream_->close();
}

asio::awaitable<void> GatewayLink::read_events() {
  auto const stream = stream_;
  std::string received;
  std::vector<char> buffer(64 * 1024);
  for (;;) {
    auto const got = co_await stream->read_some(buffer);
    if (!got || *got == 0) co_return;
    received.append(buffer.data(), *got);
    for (auto end = received.find('\n'); end != std::string::npos; end = received.find('\n')) {
      auto event = wire::decode_text<wire::GatewayEvent>(
          std::string_view(received).substr(0, end), wire::UnknownKeys::ignore, event_bytes_max);
      received.erase(0, end + 1);
      // It speaks something else, or at great length: not ours any more.
      if (!event || (event->decision && end > decision_bytes_max)) co_return;
      on_event(std::move(*event));
      if (!host_.audit.crowded(wanted_.sandbox)) continue;
      bool const room = co_await host_.audit.wait_room(wanted_.sandbox);
      if (!room) co_return;
    }
    if (received.size() > event_bytes_max) co_return;
  }
}

void GatewayLink::on_event(wire::GatewayEvent event) {
  if (event.decision) record(*event.decision);
  if (event.names) remember(*event.names);
  if (event.metrics && !merge_gateway(base::metrics(), *event.metrics))
    base::log::warn("strange_metrics", {{"sandbox", wanted_.sandbox}});
  if (event.broker_lost && !std::exchange(renewing_, true)) spawn("broker", renew_broker());
  if (event.started) {
    bool const again = std::exchange(guest_knows_one_, true);
    authority_ = std::move(event.started->authority_pem);
    if (again) spawn("tell the guest", tell_guest_again());
    if (state_ == State::closed) state_ = State::open;
  }
  if (event.applied) {
    // The answer to the policy with which an adopted gateway is greeted, or a refused start.
    if (state_ == State::closed && event.applied->error.empty()) state_ = State::open;
    if (state_ == State::closed) {
      state_ = State::off;  // a gateway that was not started refuses everything
      error_ = base::Error(base::Code::invalid_argument, event.applied->error);
      stream_->close();
    }
    applied_ = std::move(event.applied);
  }
  changed_.notify_all();
}

/// What a gateway that was taken over says here is told to its successor alone, whose policy judges
/// each name anew.
void GatewayLink::remember(std::map<std::string, std::string> const& names) {
  for (auto const& [name, address] : names) {
    bool const sane = name.size() <= 253 && address.size() <= 15;
    if (sane && names_.size() < names_max) names_.insert_or_assign(name, address);
  }
}

asio::awaitable<void> GatewayLink::tend_and_watch() {
  co_await async::race(tend(), watch_audit());
}

asio::awaitable<void> GatewayLink::watch_audit() {
  co_await host_.audit.wait_broken();
  co_await switch_off("its decisions cannot be recorded");
}

asio::awaitable<void> GatewayLink::renew_broker() {
  // Leases first: a gateway that is connected finds its credentials.
  while (state_ != State::off && stream_) {
    leases_due_ = base::system_clock().steady_now();
    auto const leased = co_await put_leases();
    auto const renewed = co_await async::blocking(
        [client = host_.hostd, slot = wanted_.slot] { return client.renew_broker(slot); });
    if (!leased)  // tend() tries again
      base::log::warn("leases_not_renewed",
                      {{"sandbox", wanted_.sandbox}, {"what", leased.error().message()}});
    if (renewed) break;
    co_await async::sleep_for(broker_pause);
  }
  renewing_ = false;
}

void GatewayLink::record(wire::GatewayDecision const& decision) {
  count_decision(base::metrics(), decision, words_);
  auto const now = base::to_rfc3339(base::system_clock().wall_now());
  host_.audit.add(
      wanted_.sandbox,
      audit_record(host_.config.node_name, wanted_.sandbox, wanted_.epoch, now, decision));
  // At the first hit; and at the end of an exchange, as gateways tell that are older than we.
  bool const reflected = decision.kind == "credential" && decision.decision == "reflected";
  if (reflected || decision.scrub_hits > 0) quarantine(decision);
}

/// What a server sent back once, it may send back in a form that nobody finds: the sandbox does not
/// get it any more, and nobody else once the control plane has heard (wire::Reflected).
void GatewayLink::quarantine(wire::GatewayDecision const& decision) {
  auto const found = std::ranges::find_if(wanted_.credentials, [&](wire::Lease const& lease) {
    return fmt::format("{}/{}", lease.sealed.credential, lease.sealed.version) ==
           decision.credential;
  });
  // What the sandbox brought itself (its name has a colon) is nobody else's, and need be no secret;
  // what no row stands for, as in a self-test, could be let out by nobody.
  bool const stored = found != wanted_.credentials.end() &&
                      found->name.find(':') == std::string::npos &&
                      found->sealed.credential.size() == uuid_digits;
  if (!stored) return;
  auto const now = base::system_clock().wall_now();
  host_.reflections.note({wanted_.sandbox,
                          found->sealed.credential,
                          found->sealed.version,
                          found->name,
                          decision.host,
                          micros_of(now)});
  wire::GatewayDecision told;
  told.kind = "credential";
  told.decision = "quarantined";
  told.reason = "a server sent it back";
  told.host = decision.host;
  told.credential = decision.credential;
  host_.audit.add(
      wanted_.sandbox,
      audit_record(
          host_.config.node_name, wanted_.sandbox, wanted_.epoch, base::to_rfc3339(now), told));
  count_decision(base::metrics(), told);
  base::log::warn(
      "credential_quarantined",
      {{"sandbox", wanted_.sandbox}, {"credential", decision.credential}, {"host", decision.host}});
  revoked_.insert(found->name);
  wanted_.credentials.erase(found);
  spawn("end a quarantined lease", end_quarantined());
  spawn("note what came back", keep_reflections());
}

asio::awaitable<void> GatewayLink::end_quarantined() {
  auto const ended = co_await end_revoked();
  if (!ended)  // tend() tries again
    base::log::warn("lease_not_ended",
                    {{"sandbox", wanted_.sandbox}, {"what", ended.error().message()}});
}

asio::awaitable<void> GatewayLink::keep_reflections() {
  auto const kept = co_await host_.reflections.keep();
  if (!kept)  // tend() tries again; the API hears of it all the same
    base::log::error("reflection_not_kept",
                     {{"sandbox", wanted_.sandbox},
                      {"what", kept.error().message()},
                      {"detail", kept.error().detail()}});
}

bool GatewayLink::may_lease(wire::Lease const& lease) const {
  return !host_.reflections.holds(lease.sealed.credential, lease.sealed.version);
}

asio::awaitable<void> GatewayLink::tend() {
  auto const settled =
      co_await async::run_until(base::system_clock().in(start_patience), wait_settled());
  if (settled != async::Ended::finished) co_return;
  for (;;) {
    wire::GatewayCommand ping;
    ping.ping = true;
    auto const sent = co_await send(std::move(ping));
    if (!sent) co_return;
    co_await keep_reflections();
    auto const leased = co_await put_leases();
    if (!leased)
      base::log::warn("leases_not_renewed",
                      {{"sandbox", wanted_.sandbox}, {"what", leased.error().message()}});
    // What came back may be given again once the API has looked.
    auto const waited = co_await async::run_until(base::system_clock().in(ping_every),
                                                  host_.reflections.wait_taken());
    if (waited == async::Ended::cancelled) co_return;
  }
}

/// What it says for an operator, at a bounded pace: a gateway that was taken over writes this.
asio::awaitable<void> GatewayLink::read_log(vmm::Descriptor log) {
  vmm::Pace pace(log_bytes_per_s);
  std::array<char, 4096> buffer{};
  for (;;) {
    auto const got = co_await log.read_some(buffer);
    if (!got || *got == 0) co_return;
    std::string text(buffer.data(), *got);
    while (text.ends_with('\n'))
      text.pop_back();
    base::log::info("gateway_says", {{"sandbox", wanted_.sandbox}, {"text", text}});
    co_await pace.took(*got);
  }
}

asio::awaitable<void> GatewayLink::tell_guest_again() {
  auto const told = co_await tell_guest_(authority_);
  if (!told)
    base::log::warn("authority_not_told",
                    {{"sandbox", wanted_.sandbox}, {"what", told.error().message()}});
}

asio::awaitable<void> GatewayLink::wait_applied() {
  while (!applied_)
    co_await changed_.wait();
}

async::Task<wire::GatewayApplied> GatewayLink::apply(
    wire::EffectivePolicy policy, std::optional<std::vector<wire::Lease>> credentials) {
  auto const turn = co_await changing_.enter();
  if (state_ != State::open)
    co_return base::fail(base::Code::unavailable,
                         error_ ? error_->message() : "the sandbox's gateway is being replaced");
  auto const before = domain::reach_of(wanted_.policy);
  auto const after = domain::reach_of(policy);
  if (!after) co_return std::unexpected(after.error());
  // What is taken away goes first in the slot's rules and then at the gateway; what is given comes
  // in the opposite order. So at no time more is let through than both policies allow.
  auto told = co_await let_through(before ? domain::common(*before, *after) : domain::Reach{});
  if (!told) {
    co_await switch_off("the rules of its slot could not be changed");
    co_return std::unexpected(*error_);
  }
  applied_.reset();
  wire::GatewayCommand command;
  command.policy = policy;
  auto const sent = co_await send(std::move(command));
  auto const heard =
      co_await async::run_until(base::system_clock().in(apply_patience), wait_applied());
  if (heard == async::Ended::cancelled)
    co_return base::fail(base::Code::cancelled, "the caller went away");
  if (!sent || !applied_ || state_ != State::open) {
    co_await switch_off("a policy was not acknowledged in time");
    co_return std::unexpected(*error_);
  }
  bool const refused = !applied_->error.empty();
  told = co_await let_through(!refused ? *after : before ? *before : domain::Reach{});
  if (!told) {
    co_await switch_off("the rules of its slot could not be changed");
    co_return std::unexpected(*error_);
  }
  if (refused) co_return base::fail(base::Code::invalid_argument, applied_->error);
  wanted_.policy = std::move(policy);
  words_ = PolicyWords(wanted_.policy, credentials ? *credentials : wanted_.credentials);
  auto const answer = *applied_;
  if (credentials) {
    for (auto const& old : wanted_.credentials) {
      bool const stays = std::ranges::any_of(
          *credentials, [&](wire::Lease const& lease) { return lease.name == old.name; });
      if (!stays) revoked_.insert(old.name);
    }
    wanted_.credentials = std::move(*credentials);
    leases_due_ = base::system_clock().steady_now();
    auto leased = co_await put_leases();
    if (!leased) co_return base::passing(leased, "lease the credentials");
  }
  co_return answer;
}

/// What was taken away: first nobody gets it any more, then requests that carry it are cut.
async::Task<void> GatewayLink::end_revoked() {
  while (!revoked_.empty()) {
    auto const name = *revoked_.begin();
    auto const is_back = std::ranges::any_of(wanted_.credentials, [&](wire::Lease const& lease) {
      return lease.name == name && may_lease(lease);
    });
    if (!is_back) {
      http::RequestHead head{
          "DELETE",
          fmt::format("/leases/{}?credential={}", wanted_.sandbox, http::percent_encode(name)),
          {{"Host", "broker"}}};
      auto reply = co_await host_.broker.request(
          std::move(head), "", base::system_clock().in(broker_patience));
      if (!reply) co_return base::passing(reply, "reach the broker");
      wire::GatewayCommand command;
      command.revoke = name;
      auto sent = co_await send(std::move(command));
      if (!sent) co_return base::passing(sent, "tell the gateway");
    }
    revoked_.erase(name);
  }
  co_return base::Result<void>();
}

hostd::Passage GatewayLink::passage_of(domain::Reach const& reach) {
  hostd::Passage passage;
  passage.named = reach.named ? 1 : 0;
  for (auto const& [address, bits] : reach.networks)
    passage.networks.at(passage.count++) = {.address = address, .bits = bits};
  return passage;
}

asio::awaitable<void> GatewayLink::check_rules() {
  // Not while a new policy changes them.
  auto const turn = co_await changing_.enter();
  if (state_ == State::off || !reach_) co_return;
  auto const reach = reach_;
  auto const checked = co_await async::blocking([client = host_.hostd, slot = wanted_.slot, reach] {
    return client.check_rules(slot, passage_of(*reach));
  });
  // Without hostd nobody changes them for us either; it is back within seconds.
  bool const unknown = !checked && (checked.error().code() == base::Code::internal ||
                                    checked.error().code() == base::Code::not_found);
  rules_unknown_ = unknown ? rules_unknown_ + 1 : 0;
  if (checked || state_ == State::off || reach_ != reach) co_return;
  if (checked.error().code() == base::Code::denied) co_return co_await switch_off(rules_altered);
  base::log::warn("rules_not_checked",
                  {{"sandbox", wanted_.sandbox},
                   {"what", checked.error().message()},
                   {"detail", checked.error().detail()}});
  // Nobody knows any more what the guest may reach.
  if (rules_unknown_ >= rules_unknown_max)
    co_await switch_off("nobody can say any more whether the packet rules of its slot are ours");
}

/// Before a network that was there (or perhaps switched off) comes back: nobody has looked at its
/// rules since the worker before us did.
async::Task<void> GatewayLink::verify_rules() {
  auto const passage = passage_of(*reach_);
  auto checked = co_await async::blocking([client = host_.hostd, slot = wanted_.slot, passage] {
    return client.check_rules(slot, passage);
  });
  if (checked) co_return checked;
  reach_.reset();  // hostd has made them anew, and closed
  if (checked.error().code() == base::Code::denied) co_await switch_off(rules_altered);
  co_return base::passing(checked, "see whether the slot's rules are ours");
}

async::Task<void> GatewayLink::let_through(domain::Reach reach) {
  if (SPACE_FAULT("worker.gateway.let_through"))
    co_return base::fail(base::Code::internal, "a fault was injected here");
  if (reach_ && *reach_ == reach) co_return base::Result<void>();
  // Too many only between two policies that have little in common: none is less than what both let
  // through.
  if (reach.networks.size() > hostd::networks_max) reach.networks.clear();
  auto const passage = passage_of(reach);
  reach_.reset();
  auto done = co_await async::blocking([client = host_.hostd, slot = wanted_.slot, passage] {
    return client.let_through(slot, passage);
  });
  if (done) reach_ = std::move(reach);
  co_return done;
}

asio::awaitable<void> GatewayLink::switch_off(std::string reason) {
  if (state_ == State::off) co_return;
  state_ = State::off;
  if (!error_)
    error_ = base::Error(base::Code::unavailable, "the sandbox's network is off: " + reason);
  changed_.notify_all();
  wire::GatewayDecision decision;
  decision.kind = "network";
  decision.decision = "denied";
  decision.reason = reason;
  record(decision);
  base::log::error("network_off", {{"sandbox", wanted_.sandbox}, {"why", reason}});
  auto const ended = co_await async::blocking(
      [client = host_.hostd, slot = wanted_.slot] { return client.end_gateway(slot); });
  // Without us it refuses everything once its policy has aged.
  if (!ended)
    base::log::error("gateway_not_ended",
                     {{"sandbox", wanted_.sandbox}, {"what", ended.error().message()}});
  if (stream_) stream_->close();
  changed_.notify_all();
}

/// Of whoever had this gateway's user id before, if that was not told to the broker any more.
async::Task<void> GatewayLink::clear_leases() {
  http::RequestHead head{
      "DELETE", fmt::format("/gateways/{}", gateway_user_), {{"Host", "broker"}}};
  auto reply =
      co_await host_.broker.request(std::move(head), "", base::system_clock().in(broker_patience));
  // A broker that is not there has no lease: it keeps them in memory alone.
  bool const none = !reply && reply.error().code() == base::Code::unavailable;
  if (none || (reply && reply->status == 204)) co_return base::Result<void>();
  if (!reply) co_return base::passing(reply, "end the leases of the gateway's user");
  co_return base::fail(base::Code::unavailable,
                       fmt::format("the broker did not end leases: status {}", reply->status));
}

async::Task<void> GatewayLink::put_leases() {
  auto ended = co_await end_revoked();
  if (!ended) co_return base::passing(ended);
  auto const now = base::system_clock().steady_now();
  if (now < leases_due_) co_return base::Result<void>();
  auto const leases = wanted_.credentials;  // may be replaced while we wait
  bool all = true;
  for (auto lease : leases) {
    if (!may_lease(lease)) {
      all = false;
      continue;
    }
    lease.sandbox = wanted_.sandbox;
    lease.gateway_uid = gateway_user_;
    lease.seconds = lease_seconds;
    http::RequestHead head{
        "PUT", "/leases", {{"Host", "broker"}, {"Content-Type", "application/json"}}};
    auto reply = co_await host_.broker.request(
        std::move(head), wire::encode_text(lease), base::system_clock().in(broker_patience));
    if (!reply) co_return base::passing(reply, "reach the broker");
    if (reply->status != 204)
      co_return base::fail(base::Code::unavailable,
                           fmt::format("the broker refused a lease: status {}", reply->status),
                           reply->body);
  }
  if (all) leases_due_ = now + lease_half_life;
  co_return base::Result<void>();
}

asio::awaitable<void> GatewayLink::close() {
  closing_ = true;
  tasks_.cancel();
  co_await tasks_.join();
  if (stream_) stream_->close();
}

asio::awaitable<void> GatewayLink::end() {
  co_await close();
  state_ = State::off;
  error_ = base::Error(base::Code::conflict, "the sandbox has ended");
  changed_.notify_all();
  if (wanted_.credentials.empty()) co_return;
  http::RequestHead head{"DELETE", "/leases/" + wanted_.sandbox, {{"Host", "broker"}}};
  auto const reply =
      co_await host_.broker.request(std::move(head), "", base::system_clock().in(broker_patience));
  if (!reply)  // they end by themselves within minutes
    base::log::warn("leases_not_ended",
                    {{"sandbox", wanted_.sandbox}, {"what", reply.error().message()}});
}

}  // namespace worker
