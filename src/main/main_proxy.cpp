#include "base/log.hpp"
#include "proxy/doors.hpp"
#include "proxy/proxy.hpp"
#include "wire/config.hpp"

#include <sys/resource.h>

#include <cstdio>
#include <span>
#include <string_view>

#include <boost/asio/this_coro.hpp>
#include <pwd.h>
#include <unistd.h>

namespace {

namespace asio = boost::asio;

constexpr std::chrono::milliseconds grace{2'000};

/// Two descriptors for each visitor: the usual soft limit of 1024 would be 500 visitors.
void raise_descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, 65'536);
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

/// Who may use the internal socket: root, ourselves, the API and the controller.
std::vector<unsigned> internal_users(wire::Config const& config) {
  std::vector<unsigned> users = {0, ::getuid()};
  for (auto const& name : {config.api_user, config.controller_user}) {
    if (auto const* entry = ::getpwnam(name.c_str()))
      users.push_back(entry->pw_uid);
    else
      base::log::warn("user_unknown", {{"user", name}});
  }
  return users;
}

/// One listener for each configured address. An address the host does not have is left out as long
/// as another one works (hosts without IPv6); a port that is taken is an error.
base::Result<std::vector<std::unique_ptr<net::Listener>>> listeners_of(
    asio::any_io_executor executor, wire::Config const& config, std::uint16_t port) {
  std::vector<std::unique_ptr<net::Listener>> out;
  for (auto const& address : config.listen_addresses) {
    auto listener = net::listen_tcp(executor, address, port);
    if (listener) {
      out.push_back(std::move(*listener));
      continue;
    }
    if (listener.error().code() == base::Code::conflict) return base::passing(listener);
    base::log::warn("address_left_out",
                    {{"address", address}, {"what", listener.error().message()}});
  }
  if (out.empty())
    return base::fail(base::Code::unavailable, "none of listen_addresses can be listened on");
  return out;
}

base::Result<void> open_doors(asio::any_io_executor executor,
                              wire::Config const& config,
                              http::Server& server,
                              proxy::TlsDoor& tls_door) {
  auto plain = listeners_of(executor, config, config.http_port);
  if (!plain) return base::passing(plain, "open the plain port");
  auto encrypted = listeners_of(executor, config, config.tls_port);
  if (!encrypted) return base::passing(encrypted, "open the TLS port");
  auto internal = net::listen_unix(executor, config.proxy_socket());
  if (!internal) return base::passing(internal, "open the internal socket");
  for (auto& listener : *plain)
    server.listen(std::move(listener));
  for (auto& listener : *encrypted)
    tls_door.listen(std::move(listener));
  server.listen(proxy::only_users(std::move(*internal), internal_users(config)));
  return {};
}

asio::awaitable<int> serve(wire::Config config) {
  auto executor = co_await asio::this_coro::executor;
  auto const certificates = config.data_dir + "/ca";
  auto context =
      tls::ServerContext::load(certificates + "/server.pem", certificates + "/server.key");
  if (!context) {
    base::log::error("tls_refused",
                     {{"what", context.error().message()}, {"file", context.error().detail()}});
    co_return 1;
  }
  proxy::Proxy handler(executor,
                       {.domain = proxy::host_without_port(config.domain),
                        .api_socket = config.api_socket(),
                        .internal_socket = config.internal_socket(),
                        .dial_socket = config.dial_socket()});
  http::Server server(executor, handler);
  proxy::TlsDoor tls_door(executor, *context, server);
  async::TaskGroup background(executor);
  int exit_code = 0;
  auto const opened = open_doors(executor, config, server, tls_door);
  // From here on a signal only ends the wait below: everything that was started is ended in order.
  co_await asio::this_coro::throw_if_cancelled(false);
  if (opened) {
    background.spawn("changes", handler.follow_changes());
    background.spawn("wakes", handler.run_wakes());
    base::log::info("started",
                    {{"http_port", config.http_port},
                     {"tls_port", config.tls_port},
                     {"domain", config.domain}});
    async::Signal never(executor);
    try {
      auto const state = co_await asio::this_coro::cancellation_state;
      if (state.cancelled() == asio::cancellation_type::none) co_await never.wait();
    } catch (boost::system::system_error const&) {  // the signal to stop
    }
  } else {
    base::log::error("start_failed",
                     {{"what", opened.error().message()}, {"detail", opened.error().detail()}});
    exit_code = 1;
  }
  co_await tls_door.close();
  co_await server.close(grace);
  background.cancel();
  co_await background.join();
  base::log::info("stopped");
  co_return exit_code;
}

}  // namespace

int main(int argc, char** argv) {
  std::span<char*> const args(argv, static_cast<std::size_t>(argc));
  if (args.size() != 3 || std::string_view(args[1]) != "--config") {
    std::fputs("usage: space-proxy --config FILE\n", stderr);
    return 2;
  }
  base::log::configure("space-proxy", base::log::Level::info);
  auto config = wire::load_config(args[2]);
  if (!config) {
    base::log::error("config_refused",
                     {{"why", config.error().message()}, {"file", config.error().detail()}});
    return 2;
  }
  raise_descriptor_limit();
  // Keys, tokens and the values of credentials pass through here.
  rlimit const none{0, 0};
  if (::setrlimit(RLIMIT_CORE, &none) != 0) base::log::warn("core_limit_stays", {});
  return async::run_main([config = std::move(*config)] { return serve(config); });
}
