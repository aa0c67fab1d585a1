#include "integration/fail_closed_rig.hpp"

#include "hostd/slot_network.hpp"
#include "os/netns.hpp"
#include "tls/tls.hpp"

#include <csignal>
#include <filesystem>

namespace test {

using namespace std::chrono_literals;

namespace {

constexpr std::uint32_t policy_max_age_s = 3;
constexpr auto ping_every = 100ms;
constexpr auto pause = 5ms;
/// A slot answers so many new connections a second, and is silent to the rest.
constexpr auto pause_when_refused = 50ms;
constexpr auto dial_timeout = 1s;
constexpr auto patience = 30s;
constexpr auto attempt_timeout = 5s;
constexpr std::uint16_t trap_port = 4444;
constexpr char sandbox[] = "i1";
constexpr char secret[] = "sk-secret-value-0123";
constexpr char answer_ok[] = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";
constexpr char answer_bad[] = "HTTP/1.1 500 No\r\nContent-Length: 2\r\n\r\nno";
constexpr char word[] = "word";
constexpr char rules[] = R"({"posture":"allowlist","budgets":{"handshakes_per_s":1000},"rules":[
  {"id":"raw","hosts":["raw.example"],"ports":[7],"protocol":"tcp"},
  {"id":"plain","hosts":["plain.example"],"ports":[443]},
  {"id":"bound","hosts":["bound.example"],"ports":[8443],"inject":[{"credential":"key"}]},
  {"id":"fresh","hosts":["fresh.example"],"ports":[9443]}]})";

std::uint16_t port_of(Way way) {
  constexpr std::array<std::uint16_t, every_way.size()> ports{7, 443, 8443, 9443};
  return ports.at(static_cast<std::size_t>(way));
}

std::string host_of(Way way) {
  return std::string(name_of(way)) + ".example";
}

base::SteadyTime now() {
  return base::system_clock().steady_now();
}

template <class F> auto aside(F work) {
  return async::blocking(std::move(work));
}

std::unique_ptr<net::Listener> listen_at(asio::any_io_executor const& executor,
                                         std::string const& world,
                                         std::uint16_t port) {
  auto const netns = os::open_pinned_netns(world);
  if (!netns) throw std::runtime_error(netns.error().message());
  auto const inside = os::InNetns::enter(*netns);
  // Every address: also the one to which a name server that lies leads.
  auto made = net::listen_tcp(executor, "0.0.0.0", port);
  if (!made) throw std::runtime_error(made.error().message());
  return std::move(*made);
}

/// Counts what is read.
class CountingStream final : public net::ByteStream {
 public:
  CountingStream(net::Stream below, std::shared_ptr<std::uint64_t> bytes)
      : below_(std::move(below)), bytes_(std::move(bytes)) {}

  async::Task<std::size_t> read_some(std::span<char> into) override {
    auto const got = co_await below_->read_some(into);
    if (got) *bytes_ += *got;
    co_return got;
  }

  async::Task<void> write_all(std::span<char const> bytes) override {
    return below_->write_all(bytes);
  }

  async::Task<void> shutdown_write() override { return below_->shutdown_write(); }

  void close() noexcept override { below_->close(); }

  std::string peer_name() const override { return below_->peer_name(); }

  int native_handle() const noexcept override { return below_->native_handle(); }

 private:
  net::Stream below_;
  std::shared_ptr<std::uint64_t> bytes_;
};

/// Everything until `end` is in it; "" when the stream ends before.
async::Task<std::string> read_until(net::ByteStream* stream, std::string end) {
  std::string text;
  std::array<char, 4096> buffer;
  while (text.find(end) == std::string::npos) {
    auto const got = co_await stream->read_some(buffer);
    if (!got || *got == 0) co_return std::string();
    text.append(buffer.data(), *got);
  }
  co_return text;
}

}  // namespace

std::string_view name_of(Way way) {
  constexpr std::array<std::string_view, every_way.size()> names{"raw", "plain", "bound", "fresh"};
  return names.at(static_cast<std::size_t>(way));
}

CountingServer::CountingServer(asio::any_io_executor executor,
                               std::string const& world,
                               std::uint16_t port,
                               tls::Minter* minter,
                               std::string host,
                               std::string wanted)
    : minter_(minter),
      host_(std::move(host)),
      wanted_(std::move(wanted)),
      listener_(listen_at(executor, world, port)),
      tasks_(executor) {
  tasks_.spawn("accept", accept());
}

awaitable<void> CountingServer::accept() {
  while (true) {
    auto stream = co_await listener_->accept();
    if (!stream) co_return;
    ++connections_;
    tasks_.spawn("connection", serve(std::make_unique<CountingStream>(std::move(*stream), bytes_)));
  }
}

awaitable<void> CountingServer::serve(net::Stream stream) {
  if (minter_) {
    auto secured = co_await minter_->accept(
        host_, std::move(stream), base::system_clock().in(attempt_timeout));
    if (!secured) co_return;
    stream = std::move(*secured);
  }
  while (true) {
    auto const request = co_await read_until(stream.get(), std::string("\r\n\r\n") + word);
    if (!request || request->empty()) co_return;
    bool const good = request->find(wanted_) != std::string::npos;
    auto const sent = co_await stream->write_text(good ? answer_ok : answer_bad);
    if (!sent) co_return;
  }
}

awaitable<void> CountingServer::close() {
  listener_->close();
  tasks_.cancel();
  co_await tasks_.join();
}

FailClosedRig::FailClosedRig(asio::any_io_executor executor)
    : executor_(executor),
      world_(tls::Minter::make("world").value()),
      plain_(
          executor, internet_.path(), port_of(Way::plain), world_.get(), "plain.example", "POST"),
      bound_(
          executor, internet_.path(), port_of(Way::bound), world_.get(), "bound.example", secret),
      fresh_(
          executor, internet_.path(), port_of(Way::fresh), world_.get(), "fresh.example", "POST"),
      trap_(executor, internet_.path(), trap_port, nullptr, "", ""),
      tasks_(executor) {
  installation_.configure([&](wire::Config& config) { config.uplink = internet_.path(); });
  auto const run = installation_.directory();
  for (auto const* name : {"/broker", "/broker-use", "/keys", "/other-keys"})
    std::filesystem::create_directories(run + name);
  auto const here = os::InNetns::enter(host_);
  hostd_.emplace(installation_);
  auto made = hostd_->client().make_slot(slot);
  if (!made) throw std::runtime_error(made.error().message());
  // The hostd that made a slot holds its tap for the machine; a later one does not.
  hostd_->stop(SIGKILL);
  hostd_->start();
  auto const netns = os::open_pinned_netns(run + "/hostd/netns/1");
  if (!netns) throw std::runtime_error(netns.error().message());
  auto tap = hostd::reopen_tap(*netns);
  if (!tap) throw std::runtime_error(tap.error().message());
  guest_.emplace(std::move(*tap));
}

awaitable<void> FailClosedRig::begin() {
  co_await open_broker("/keys");
  co_await start_gateway();
  for (auto const way : every_way) {
    auto const host = host_of(way);
    names_[host] = co_await aside([guest = &*guest_, host] { return guest->resolve(host); });
    for (std::size_t i = 0; i < Tally::loads; ++i)
      tasks_.spawn("load", press(way, i));
  }
  tasks_.spawn("stray", stray(names_.at(host_of(Way::raw))));
  tasks_.spawn("stray", stray("203.0.113.10"));
}

awaitable<void> FailClosedRig::end() {
  tasks_.cancel();
  co_await tasks_.join();
  if (line_) line_->close();
  co_await end_broker();
  for (auto* server : {&plain_, &bound_, &fresh_, &trap_})
    co_await server->close();
  co_await start_hostd();
  guest_.reset();
  auto const removed =
      co_await aside([client = hostd_->client()] { return client.remove_slot(slot); });
  EXPECT_TRUE(removed);
}

wire::EffectivePolicy FailClosedRig::policy() const {
  auto parsed = wire::decode_text<wire::Policy>(rules);
  if (!parsed) throw std::runtime_error(parsed.error().message());
  return {1, {{"sandbox", std::move(*parsed)}}};
}

async::Task<void> FailClosedRig::send(wire::GatewayCommand command) {
  auto const line = line_;
  auto const text = wire::encode_text(command) + "\n";
  co_return co_await line->write_text(text);
}

void FailClosedRig::take(os::Fd control) {
  auto stream = net::adopt_socket(executor_, std::move(control));
  EXPECT_TRUE(stream);
  if (!stream) return;
  line_ = std::move(*stream);
  tasks_.spawn("drain", drain(line_));
}

/// Keeps the gateway's policy young.
awaitable<void> FailClosedRig::feed(std::shared_ptr<net::ByteStream> line) {
  wire::GatewayCommand ping;
  ping.ping = true;
  auto const text = wire::encode_text(ping) + "\n";
  while (true) {
    auto const sent = co_await line->write_text(text);
    if (!sent) co_return;
    co_await async::sleep_for(ping_every);
  }
}

/// Reads what the gateway says: of it the certificate of its authority is wanted alone.
awaitable<void> FailClosedRig::drain(std::shared_ptr<net::ByteStream> line) {
  std::string received;
  std::vector<char> buffer(64 * 1024);
  while (true) {
    auto const got = co_await line->read_some(buffer);
    if (!got || *got == 0) co_return;
    received.append(buffer.data(), *got);
    for (auto end = received.find('\n'); end != std::string::npos; end = received.find('\n')) {
      auto const event =
          wire::decode_text<wire::GatewayEvent>(std::string_view(received).substr(0, end));
      received.erase(0, end + 1);
      if (!event || !event->started) continue;
      authority_ = event->started->authority_pem;
    }
  }
}

awaitable<void> FailClosedRig::kill_gateway() {
  ::kill(gateway_, SIGKILL);
  authority_.clear();
  co_return;
}

awaitable<void> FailClosedRig::start_gateway() {
  auto gateway = co_await aside([client = hostd_->client()]() -> base::Result<hostd::Gateway> {
    auto ended = client.end_gateway(slot);
    if (!ended) return std::unexpected(ended.error());
    return client.start_gateway(slot);
  });
  EXPECT_TRUE(gateway) << gateway.error().detail();
  if (!gateway) co_return;
  gateway_ = gateway->pid;
  gateway_user_ = gateway->user_id;
  lease();
  take(std::move(gateway->control));
  wire::GatewayCommand command;
  auto& start = command.start.emplace();
  start.sandbox = sandbox;
  start.policy = policy();
  start.resolvers = {"203.0.113.53"};
  start.trusted_ca_pem = world_->authority_pem();
  start.admitted_networks = {"203.0.113.0/24"};
  start.policy_max_age_s = policy_max_age_s;
  start.names = names_;
  auto const sent = co_await send(std::move(command));
  EXPECT_TRUE(sent);
  EXPECT_TRUE(co_await until([this] { return !authority_.empty(); }));
  tasks_.spawn("feed", feed(line_));
}

awaitable<void> FailClosedRig::leave_gateway() {
  line_->close();
  co_return;
}

awaitable<void> FailClosedRig::attach_gateway() {
  auto gateway =
      co_await aside([client = hostd_->client()] { return client.attach_gateway(slot); });
  EXPECT_TRUE(gateway);
  if (!gateway) co_return;
  take(std::move(gateway->control));
  wire::GatewayCommand command;
  command.policy = policy();
  auto const sent = co_await send(std::move(command));
  EXPECT_TRUE(sent);
  tasks_.spawn("feed", feed(line_));
}

awaitable<void> FailClosedRig::replace_worker() {
  co_await leave_gateway();
  co_await attach_gateway();
}

awaitable<void> FailClosedRig::kill_hostd() {
  hostd_->stop(SIGKILL);
  co_return;
}

awaitable<void> FailClosedRig::start_hostd() {
  if (hostd_->pid() != 0) co_return;
  auto const here = os::InNetns::enter(host_);
  hostd_->start();
}

bool FailClosedRig::makes_slots() const {
  auto const client = hostd_->client();
  if (!client.make_slot(slot + 1)) return false;
  return client.remove_slot(slot + 1).has_value();
}

awaitable<void> FailClosedRig::open_broker(std::string keys) {
  auto opened = broker::open_file_keys(installation_.directory() + keys);
  EXPECT_TRUE(opened);
  if (!opened) co_return;
  keys_ = std::move(*opened);
  vault_.emplace(*keys_, clock_);
  if (!sealed_) {
    wire::Seal request;
    request.credential = "c1";
    request.value = secret;
    request.binding.hosts = {"bound.example"};
    request.binding.ports = {port_of(Way::bound)};
    request.binding.header = "x-api-key";
    sealed_ = vault_->seal(request).value();
  }
  broker_.emplace(executor_, *vault_, 0U, 0U);
  auto const listening =
      broker_->listen(installation_.config().broker_socket(), installation_.config().use_socket());
  EXPECT_TRUE(listening) << listening.error().message();
}

void FailClosedRig::lease() {
  auto const leased = vault_->lease({sandbox, gateway_user_, "key", *sealed_});
  EXPECT_TRUE(leased) << leased.error().message();
}

awaitable<void> FailClosedRig::end_broker() {
  if (broker_) co_await broker_->close();
  broker_.reset();
  vault_.reset();
}

awaitable<void> FailClosedRig::start_broker() {
  co_await end_broker();
  co_await open_broker("/keys");
  lease();
  auto const renewed =
      co_await aside([client = hostd_->client()] { return client.renew_broker(slot); });
  EXPECT_TRUE(renewed);
}

awaitable<void> FailClosedRig::start_broker_with_another_key() {
  co_await end_broker();
  co_await open_broker("/other-keys");
  EXPECT_FALSE(vault_->lease({sandbox, gateway_user_, "key", *sealed_}));
  auto const renewed =
      co_await aside([client = hostd_->client()] { return client.renew_broker(slot); });
  EXPECT_TRUE(renewed);
}

awaitable<void> FailClosedRig::end_leases_by_time() {
  clock_.steady += 1h;
  co_return;
}

awaitable<void> FailClosedRig::end_leases_though_the_clock_is_set_back() {
  clock_.steady += 1h;
  clock_.wall -= 24h;
  co_return;
}

awaitable<void> FailClosedRig::set_the_clock_forward() {
  clock_.wall += std::chrono::hours(24 * 400);
  co_return;
}

awaitable<void> FailClosedRig::lease_again() {
  lease();
  co_return;
}

awaitable<void> FailClosedRig::fail_names() {
  internet_.set_names(Names::failing);
  co_return;
}

awaitable<void> FailClosedRig::take_names_away() {
  internet_.set_names(Names::gone);
  co_return;
}

awaitable<void> FailClosedRig::lead_names_inside() {
  internet_.set_names(Names::inside);
  co_return;
}

awaitable<void> FailClosedRig::mend_names() {
  internet_.set_names(Names::right);
  co_return;
}

awaitable<void> FailClosedRig::nothing() {
  co_return;
}

async::Task<net::Stream> FailClosedRig::dial(std::string address, std::uint16_t port) {
  auto socket = guest_->begin_dial(address, port);
  if (!socket) co_return base::fail(base::Code::unavailable, "refused");
  auto connecting = net::finish_connect(std::move(socket));
  co_return co_await async::with_deadline(base::system_clock().in(dial_timeout),
                                          std::move(connecting));
}

async::Task<net::Stream> FailClosedRig::open_way(Way way) {
  auto stream = co_await dial(names_.at(host_of(way)), port_of(way));
  if (!stream || way == Way::raw) co_return stream;
  auto trust = tls::ClientContext::from_pem(authority_);
  if (!trust) co_return base::passing(trust);
  co_return co_await tls::connect(
      *trust, std::move(*stream), host_of(way), base::system_clock().in(attempt_timeout));
}

async::Task<bool> FailClosedRig::exchange(net::ByteStream* stream, Way way) {
  auto const text =
      way == Way::raw ? std::string(word)
                      : fmt::format("POST / HTTP/1.1\r\nHost: {}:{}\r\nContent-Length: 4\r\n\r\n{}",
                                    host_of(way),
                                    port_of(way),
                                    word);
  auto const sent = co_await stream->write_text(text);
  if (!sent) co_return false;
  auto const heard = co_await read_until(stream, way == Way::raw ? word : "hello");
  if (!heard) co_return false;
  co_return way == Way::raw ? !heard->empty() : heard->starts_with("HTTP/1.1 200 ");
}

awaitable<void> FailClosedRig::press(Way way, std::size_t load) {
  auto& tally = tallies_.at(static_cast<std::size_t>(way));
  while (true) {
    auto stream = co_await open_way(way);
    bool open = stream.has_value();
    if (!open) ++tally.refused.at(load);
    while (open) {
      auto going = exchange(stream->get(), way);
      auto const ended =
          co_await async::with_deadline(base::system_clock().in(attempt_timeout), std::move(going));
      bool const answered = ended && *ended;
      ++(answered ? tally.answered : tally.refused.at(load));
      open = answered && way != Way::fresh;
      if (answered) co_await async::sleep_for(pause);
      if (!answered) co_await async::sleep_for(pause_when_refused);
    }
    if (!stream) co_await async::sleep_for(pause_when_refused);
  }
}

awaitable<void> FailClosedRig::stray(std::string address) {
  while (true) {
    auto stream = co_await dial(address, trap_port);
    if (stream) {
      auto const sent = co_await (*stream)->write_text(word);
      static_cast<void>(sent);  // the trap says whether it came
    }
    ++strays_tried_;
    co_await async::sleep_for(pause_when_refused);
  }
}

std::uint64_t FailClosedRig::arrived(Way way) const {
  switch (way) {
    case Way::raw:
      return internet_.arrived();
    case Way::plain:
      return plain_.seen();
    case Way::bound:
      return bound_.seen();
    case Way::fresh:
      return fresh_.seen();
  }
  return 0;
}

awaitable<bool> FailClosedRig::until(std::function<bool()> condition) {
  auto const end = now() + patience;
  while (!condition()) {
    if (now() > end) co_return false;
    co_await async::sleep_for(pause);
  }
  co_return true;
}

awaitable<bool> FailClosedRig::carries(Way way) {
  auto const& tally = tallies_.at(static_cast<std::size_t>(way));
  auto const enough = tally.answered + 2 * Tally::loads;
  co_return co_await until([&] { return tally.answered >= enough; });
}

awaitable<bool> FailClosedRig::refuses(Way way, std::uint64_t times) {
  auto const& refused = tallies_.at(static_cast<std::size_t>(way)).refused;
  auto const before = refused;
  co_return co_await until([&] {
    for (std::size_t i = 0; i < refused.size(); ++i)
      if (refused.at(i) < before.at(i) + times) return false;
    return true;
  });
}

awaitable<bool> FailClosedRig::is_closed(Way way) {
  auto const end = now() + patience;
  bool quiet = false;
  // What was on its way may still come or be read, and what fails may take its time to. When each
  // load was refused, each has begun anew since.
  while (!quiet) {
    if (now() > end) co_return false;
    auto const seen = arrived(way);
    bool const refused = co_await refuses(way, 2);
    if (!refused) co_return false;
    quiet = arrived(way) == seen;
  }
  auto const seen = arrived(way);
  bool const refused = co_await refuses(way, 3);
  co_return refused&& arrived(way) == seen;
}

}  // namespace test
