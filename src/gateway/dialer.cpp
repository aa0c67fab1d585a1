#include "gateway/dialer.hpp"

#include "base/metric_names.hpp"

namespace gateway {
namespace {

namespace metric = base::metric;

void count_failure(std::string_view stage) {
  base::metrics().count(metric::upstream_failures, {stage});
}

// Long enough for a far server, short enough that a second address gets its turn within the whole
// deadline.
constexpr std::chrono::milliseconds connect_timeout{4'000};
constexpr std::chrono::milliseconds resolve_timeout{2'500};

}  // namespace

base::Error why_not_reached(std::vector<Address> const& tried, base::Error last) {
  if (tried.empty() || std::ranges::any_of(tried, is_ipv4)) return last;
  return base::Error(
      last.code(),
      "the name has IPv6 addresses alone, and none was reached; the way out may carry IPv4 only",
      last.message());
}

std::string_view tls_failure_of(base::Error const& error) {
  if (error.code() == base::Code::deadline_exceeded) return "timeout";
  std::string_view const text = error.message();
  auto const has = [text](std::string_view words) {
    return text.find(words) != std::string_view::npos;
  };
  // What the server said of us is in the words of an alert.
  if (has("alert")) return "handshake";
  if (has("certificate has expired")) return "certificate_expired";
  if (has("certificate is not yet valid")) return "certificate_not_yet_valid";
  if (has("mismatch")) return "certificate_of_another_name";
  return has("certificate") || has("CA") ? "certificate_untrusted" : "handshake";
}

async::Task<Dialer::Connected> Dialer::dial(domain::HostName host,
                                            std::uint16_t port,
                                            base::Deadline deadline) {
  auto const began = base::system_clock().steady_now();
  auto const until = std::min(deadline, base::system_clock().in(resolve_timeout));
  auto addresses = co_await resolver_.resolve(std::move(host), until);
  if (!addresses) count_failure("resolve");
  if (!addresses) co_return base::passing(addresses);
  std::erase_if(*addresses, [&](Address const& address) { return !filter_.allows(address); });
  if (addresses->empty()) {
    count_failure("private_address");
    co_return base::fail(base::Code::denied,
                         "the name leads to private or reserved addresses only");
  }
  auto const tried = *addresses;
  auto connected = co_await connect_first(std::move(*addresses), port, deadline);
  if (!connected) co_return std::unexpected(why_not_reached(tried, std::move(connected.error())));
  std::chrono::duration<double> const took = base::system_clock().steady_now() - began;
  base::metrics().observe(metric::upstream_connect_seconds, took.count());
  co_return connected;
}

async::Task<Dialer::Connected> Dialer::dial_tls(domain::HostName host,
                                                std::uint16_t port,
                                                base::Deadline deadline) {
  auto name = host.str();
  auto connected = co_await dial(std::move(host), port, deadline);
  if (!connected) co_return base::passing(connected);
  auto secured =
      co_await tls::connect(trust_, std::move(connected->stream), std::move(name), deadline);
  if (!secured) {
    count_failure("tls");
    base::metrics().count(metric::upstream_tls_failures, {tls_failure_of(secured.error())});
  }
  if (!secured) co_return base::passing(secured, "upstream");
  Connected out;
  out.stream = std::move(*secured);
  out.address = connected->address;
  co_return out;
}

async::Task<Dialer::Connected> Dialer::dial_address(std::uint32_t ipv4,
                                                    std::uint16_t port,
                                                    base::Deadline deadline) {
  auto const address = address_of_ipv4(ipv4);
  if (!filter_.allows(address)) {
    count_failure("private_address");
    co_return base::fail(base::Code::denied, "the address is private or reserved");
  }
  std::vector<Address> only(1, address);
  co_return co_await connect_first(std::move(only), port, deadline);
}

async::Task<Dialer::Connected> Dialer::connect_first(std::vector<Address> addresses,
                                                     std::uint16_t port,
                                                     base::Deadline deadline) {
  base::Error last(base::Code::unavailable, "no address answered");
  for (auto const& address : addresses) {
    auto const until = std::min(deadline, base::system_clock().in(connect_timeout));
    auto connecting = net::connect_tcp(to_text(address), port);
    auto stream = co_await async::with_deadline(until, std::move(connecting));
    if (stream) {
      Connected out;
      out.stream = std::move(*stream);
      out.address = address;
      co_return out;
    }
    last = stream.error();
    if (base::system_clock().steady_now() >= deadline) break;
  }
  count_failure("connect");
  co_return std::unexpected(std::move(last));
}

}  // namespace gateway
