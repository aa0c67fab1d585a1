#include "broker/service.hpp"

#include "base/log.hpp"
#include "broker/usage_file.hpp"
#include "wire/text.hpp"

#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#include <charconv>

#include <grp.h>
#include <pwd.h>
#include <unistd.h>

namespace broker {
namespace {

using base::Code;

constexpr std::size_t body_bytes_max = 128 * 1024;
constexpr std::size_t line_bytes_max = 16 * 1024;
/// Of one gateway; a sandbox's connections are fewer.
constexpr std::size_t held_max = 4096;
/// So many that few answers make the text grow, which leaves a copy of a value behind.
constexpr std::size_t answers_bytes = 32 * 1024;

http::Response json(int status, std::string body) {
  return {status, {{"Content-Type", "application/json"}}, std::move(body)};
}

http::Response failure(base::Error const& error) {
  wire::json::object body;
  body["code"] = base::name_of(error.code());
  body["message"] = error.message();
  return json(base::http_status_of(error.code()), wire::to_text(body));
}

base::Result<unsigned> uid_of(std::string const& name) {
  // Once, before any thread or request: the reentrant form brings nothing here.
  auto const* user = ::getpwnam(name.c_str());  // NOLINT(concurrency-mt-unsafe)
  if (!user) return base::fail(Code::not_found, fmt::format("there is no user {}", name));
  return user->pw_uid;
}

}  // namespace

Service::Service(boost::asio::any_io_executor executor,
                 Vault& vault,
                 unsigned api_uid,
                 unsigned worker_uid)
    : executor_(executor),
      vault_(vault),
      api_uid_(api_uid),
      worker_uid_(worker_uid),
      server_(executor, *this),
      tasks_(executor) {}

Service::~Service() = default;

base::Result<void> Service::listen(std::string const& broker_socket,
                                   std::string const& use_socket) {
  auto listener = net::listen_unix(executor_, broker_socket);
  if (!listener) return base::passing(listener, "listen for the API and the worker");
  auto gateways = net::listen_unix(executor_, use_socket);
  if (!gateways) return base::passing(gateways, "listen for gateways");
  server_.listen(std::move(*listener));
  gateways_ = std::move(*gateways);
  tasks_.spawn("gateways", accept_gateways());
  return {};
}

boost::asio::awaitable<void> Service::handle(http::Request& request,
                                             http::ResponseWriter& response) {
  auto const peer = net::peer_user(request.connection);
  auto body = co_await request.body.read_all(body_bytes_max);
  http::Response reply;
  if (!peer) {
    reply = failure(base::Error(Code::unauthenticated, "who is asking is not known"));
  } else if (!body) {
    reply = failure(body.error());
  } else {
    auto answered = answer(peer->uid, request.head, *body);
    explicit_bzero(body->data(), body->size());
    reply = answered ? std::move(*answered) : failure(answered.error());
  }
  static_cast<void>(co_await response.send(std::move(reply)));
}

base::Result<http::Response> Service::answer(unsigned uid,
                                             http::RequestHead const& head,
                                             std::string const& body) {
  auto const path = head.path();
  bool const operator_asks = uid == 0;
  if (head.method == "POST" && path == "/seal") {
    if (uid != api_uid_ && !operator_asks)
      return base::fail(Code::denied, "only the API seals credentials");
    auto request = wire::decode_text<wire::Seal>(body);
    if (!request) return base::passing(request);
    auto sealed = vault_.seal(*request);
    explicit_bzero(request->value.data(), request->value.size());
    if (!sealed) return base::passing(sealed);
    return json(200, wire::encode_text(*sealed));
  }
  constexpr std::string_view gateways = "/gateways/";
  bool const leases =
      path == "/leases" || path.starts_with("/leases/") || path.starts_with(gateways);
  if (leases && uid != worker_uid_ && !operator_asks)
    return base::fail(Code::denied, "only the worker leases credentials");
  if (head.method == "PUT" && path == "/leases") {
    auto request = wire::decode_text<wire::Lease>(body);
    if (!request) return base::passing(request);
    auto leased = vault_.lease(*request);
    if (!leased) return base::passing(leased);
    return http::Response{204, {}, {}};
  }
  if (head.method == "DELETE" && path.starts_with("/leases/")) {
    auto const query = http::parse_query(head.query());
    if (!query) return std::unexpected(query.error());
    std::string name;
    for (auto const& [key, value] : *query)
      if (key == "credential") name = value;
    vault_.end_leases(path.substr(std::string_view("/leases/").size()), name);
    return http::Response{204, {}, {}};
  }
  if (head.method == "DELETE" && path.starts_with(gateways)) {
    std::uint32_t gateway = 0;
    auto const number = std::string_view(path).substr(gateways.size());
    auto const [end, error] =
        std::from_chars(number.data(), number.data() + number.size(), gateway);
    if (error != std::errc() || end != number.data() + number.size())
      return base::fail(Code::invalid_argument, "a gateway is named by its user id");
    vault_.end_leases_of(gateway);
    return http::Response{204, {}, {}};
  }
  return base::fail(Code::not_found, "the broker has no such call");
}

boost::asio::awaitable<void> Service::accept_gateways() {
  while (true) {
    auto gateway = co_await gateways_->accept();
    if (!gateway) co_return;
    tasks_.spawn("gateway", serve_gateway(std::move(*gateway)));
  }
}

/// What a gateway's requests that are under way count for, by their questions. A gateway that is
/// gone has none under way.
struct Service::Held {
  explicit Held(Vault& of) : vault(of) {}

  ~Held() {
    for (auto const& [question, one] : all)
      vault.release(one);
  }

  Held(Held const&) = delete;
  Held& operator=(Held const&) = delete;

  void end(std::uint64_t question) {
    auto const found = all.find(question);
    if (found == all.end()) return;
    vault.release(found->second);
    all.erase(found);
  }

  Vault& vault;
  std::map<std::uint64_t, std::vector<std::string>> all;
};

/// False: a gateway that speaks something else is not ours any more.
bool Service::answer_line(unsigned uid, std::string_view line, std::string& answers, Held& held) {
  auto const use = wire::decode_brief<wire::Use>(line);
  if (!use) return false;
  if (use->done) {
    held.end(*use->done);
    return true;
  }
  std::vector<std::string> now_held;
  wire::Used used;
  if (held.all.size() < held_max && !held.all.contains(use->question)) {
    used = vault_.use(uid, *use, &now_held);
  } else {
    used.code = "exhausted";
    used.message = "one sandbox has too many requests under way";
  }
  used.question = use->question;
  if (!now_held.empty()) held.all.emplace(use->question, std::move(now_held));
  wire::append_text(answers, used);
  answers += '\n';
  explicit_bzero(used.value.data(), used.value.size());
  return true;
}

boost::asio::awaitable<void> Service::serve_gateway(std::shared_ptr<net::ByteStream> gateway) {
  auto const peer = net::peer_user(*gateway);
  if (!peer) co_return;
  // A gateway gets a new connection when it lost the one before; one that says so again and again
  // must not collect them until there are none for others.
  auto& connected = connected_[peer->uid];
  if (auto const before = connected.lock()) before->close();
  connected = gateway;
  Held held(vault_);
  std::string received;
  std::array<char, 4096> buffer;
  while (true) {
    auto const got = co_await gateway->read_some(buffer);
    if (!got || *got == 0) co_return;
    received.append(buffer.data(), *got);
    // What came together is answered together.
    std::string answers;
    answers.reserve(answers_bytes);
    std::size_t from = 0;
    bool good = true;
    for (auto end = received.find('\n'); end != std::string::npos && good;
         end = received.find('\n', from)) {
      good = answer_line(
          peer->uid, std::string_view(received).substr(from, end - from), answers, held);
      from = end + 1;
    }
    received.erase(0, from);
    if (answers.empty() && good && received.size() <= line_bytes_max) continue;
    auto const sent = co_await gateway->write_text(answers);
    explicit_bzero(answers.data(), answers.size());
    if (!sent || !good || received.size() > line_bytes_max) co_return;
  }
}

boost::asio::awaitable<void> Service::close() {
  if (gateways_) gateways_->close();
  tasks_.cancel();
  co_await tasks_.join();
  co_await server_.close(std::chrono::seconds(1));
}

base::Result<void> harden() {
  rlimit const none{0, 0};
  if (::setrlimit(RLIMIT_CORE, &none) != 0) return base::fail_errno("forbid core dumps");
  if (::prctl(PR_SET_DUMPABLE, 0) != 0) return base::fail_errno("forbid being traced");
  // Not everywhere allowed (MEMLOCK limits); swap is then the host's business, and `space doctor`
  // says so.
  if (::mlockall(MCL_CURRENT) != 0)
    base::log::warn("memory_not_locked", {{"what", "the limit for locked memory is too low"}});
  return {};
}

boost::asio::awaitable<int> run_broker(wire::Config config) {
  auto executor = co_await boost::asio::this_coro::executor;
  auto const api = uid_of(config.api_user);
  auto const worker = uid_of(config.worker_user);
  if (!api || !worker) {
    base::log::error("broker_users", {{"what", (api ? worker : api).error().message()}});
    co_return 1;
  }
  auto keys = open_file_keys(config.data_dir + "/broker");
  if (!keys) {
    base::log::error("broker_keys",
                     {{"what", keys.error().message()}, {"detail", keys.error().detail()}});
    co_return 1;
  }
  Vault vault(**keys, base::system_clock());
  UsageFile usage(config.data_dir + "/broker/usage.json", vault.ledger());
  // Credentials go on without it: what is lost is what was used of this day.
  if (auto const loaded = usage.load(); !loaded)
    base::log::error("usage_not_read",
                     {{"what", loaded.error().message()}, {"detail", loaded.error().detail()}});
  Service service(executor, vault, *api, *worker);
  if (auto listening = service.listen(config.broker_socket(), config.use_socket()); !listening) {
    base::log::error("broker_listen", {{"what", listening.error().message()}});
    co_return 1;
  }
  base::log::info("broker_ready", {{"key", (*keys)->key_id()}});
  auto const throws = co_await boost::asio::this_coro::throw_if_cancelled();
  co_await boost::asio::this_coro::throw_if_cancelled(false);
  try {
    co_await usage.run();
  } catch (boost::system::system_error const&) {
    // SIGTERM: an orderly end.
  }
  co_await service.close();
  if (auto const kept = co_await usage.keep(); !kept)
    base::log::error("usage_not_kept", {{"what", kept.error().message()}});
  co_await boost::asio::this_coro::throw_if_cancelled(throws);
  co_return 0;
}

}  // namespace broker
