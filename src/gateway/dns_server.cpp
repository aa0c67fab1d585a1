#include "base/metric_names.hpp"
#include "gateway/gateway.hpp"

#include <netinet/in.h>
#include <sys/socket.h>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>

namespace gateway {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t message_bytes_max = 512;
constexpr int stream_queries_max = 20;
constexpr auto stream_timeout = 2s;
constexpr double queries_per_s = 50;

std::string answer(Gateway& gateway, std::string_view message) {
  auto const policy = gateway.policy();
  auto const allows = [&](domain::HostName const& name) {
    return policy && policy->knows_name(name);
  };
  auto out = answer_query(message, gateway.names(), allows);
  // The others have a record.
  if (out.verdict == DnsVerdict::answered || out.verdict == DnsVerdict::no_data)
    base::metrics().count(base::metric::dns_queries, {"allowed"});
  if (out.made) gateway.name_made(out.made->first, out.made->second);
  if (out.verdict != DnsVerdict::answered && out.verdict != DnsVerdict::no_data &&
      out.verdict != DnsVerdict::ignored) {
    wire::GatewayDecision record;
    record.kind = "dns";
    record.decision = "denied";
    record.reason = out.verdict == DnsVerdict::denied    ? "name_not_allowed"
                    : out.verdict == DnsVerdict::limited ? "name_budget"
                                                         : "malformed_query";
    record.host = out.name;
    record.port = 53;
    gateway.report(std::move(record));
  }
  return std::move(out.message);
}

/// One datagram with the address that the guest sent it to, so that the answer comes from there.
struct Datagram {
  std::array<char, message_bytes_max + 1> bytes;
  std::size_t size = 0;
  sockaddr_in from{};
  in_addr to{};
};

// SAFETY: the socket calls take addresses and control messages as untyped memory; sizes are passed
// along.
bool receive(int socket, Datagram& datagram) {
  iovec part{datagram.bytes.data(), datagram.bytes.size()};
  alignas(cmsghdr) std::array<char, 128> control{};
  msghdr message{};
  message.msg_name = &datagram.from;
  message.msg_namelen = sizeof datagram.from;
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  auto const got = ::recvmsg(socket, &message, MSG_DONTWAIT);
  if (got < 0) return false;
  datagram.size = static_cast<std::size_t>(got);
  datagram.to = {};
  for (auto* one = CMSG_FIRSTHDR(&message); one != nullptr; one = CMSG_NXTHDR(&message, one)) {
    if (one->cmsg_level == SOL_IP && one->cmsg_type == IP_RECVORIGDSTADDR) {
      datagram.to = reinterpret_cast<sockaddr_in const*>(CMSG_DATA(one))->sin_addr;
    } else if (one->cmsg_level == SOL_IP && one->cmsg_type == IP_PKTINFO &&
               datagram.to.s_addr == 0) {
      datagram.to = reinterpret_cast<in_pktinfo const*>(CMSG_DATA(one))->ipi_addr;
    }
  }
  return true;
}

void reply(int socket, Datagram& datagram, std::string& text) {
  iovec part{text.data(), text.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(in_pktinfo))> control{};
  msghdr message{};
  message.msg_name = &datagram.from;
  message.msg_namelen = sizeof datagram.from;
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  auto* one = CMSG_FIRSTHDR(&message);
  one->cmsg_level = SOL_IP;
  one->cmsg_type = IP_PKTINFO;
  one->cmsg_len = CMSG_LEN(sizeof(in_pktinfo));
  auto* info = reinterpret_cast<in_pktinfo*>(CMSG_DATA(one));
  info->ipi_spec_dst = datagram.to;
  // A lost answer is a lost datagram: the guest asks again.
  static_cast<void>(::sendmsg(socket, &message, MSG_DONTWAIT));
}

async::Task<std::string> read_message(net::ByteStream& stream, std::string& received) {
  while (true) {
    if (received.size() >= 2) {
      auto const size = static_cast<std::size_t>(static_cast<unsigned char>(received[0]) << 8 |
                                                 static_cast<unsigned char>(received[1]));
      if (size > message_bytes_max)
        co_return base::fail(base::Code::too_large, "a query is over 512 bytes");
      if (received.size() >= 2 + size) {
        auto message = received.substr(2, size);
        received.erase(0, 2 + size);
        co_return message;
      }
    }
    std::array<char, 1024> buffer;
    auto const got = co_await stream.read_some(buffer);
    if (!got) co_return std::unexpected(got.error());
    if (*got == 0) co_return base::fail(base::Code::unavailable, "closed");
    received.append(buffer.data(), *got);
  }
}

}  // namespace

asio::awaitable<void> serve_dns_datagrams(Gateway& gateway, os::Fd socket) {
  asio::posix::stream_descriptor descriptor(gateway.executor(), socket.release());
  Bucket budget(queries_per_s, base::system_clock().steady_now());
  auto datagram = std::make_unique<Datagram>();
  while (true) {
    auto const [error] = co_await descriptor.async_wait(asio::posix::stream_descriptor::wait_read,
                                                        asio::as_tuple(asio::use_awaitable));
    if (error) co_return;
    // A bounded burst, so that a flood of queries does not starve the connections.
    for (int i = 0; i < 32 && receive(descriptor.native_handle(), *datagram); ++i) {
      if (!budget.take(base::system_clock().steady_now())) continue;
      auto text = answer(gateway, std::string_view(datagram->bytes.data(), datagram->size));
      if (!text.empty()) reply(descriptor.native_handle(), *datagram, text);
    }
  }
}

asio::awaitable<void> serve_dns_stream(Gateway& gateway, net::Stream guest) {
  std::string received;
  for (int i = 0; i < stream_queries_max; ++i) {
    auto reading = read_message(*guest, received);
    auto const message =
        co_await async::with_deadline(base::system_clock().in(stream_timeout), std::move(reading));
    if (!message) co_return;
    auto const text = answer(gateway, *message);
    if (text.empty()) co_return;
    std::string framed;
    framed += static_cast<char>(text.size() >> 8 & 0xff);
    framed += static_cast<char>(text.size() & 0xff);
    framed += text;
    auto const sent = co_await guest->write_text(framed);
    if (!sent) co_return;
  }
}

}  // namespace gateway
