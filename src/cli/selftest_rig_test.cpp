#include "cli/selftest_rig.hpp"

#include "async/testing.hpp"
#include "cli/selftest_answers.hpp"
#include "cli/selftest_certificates.hpp"
#include "os/netns.hpp"
#include "os/text_file.hpp"
#include "tls/tls.hpp"

#include <arpa/inet.h>
#include <sys/socket.h>

#include <filesystem>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

namespace cli::selftest {
namespace {

namespace asio = boost::asio;

base::Deadline soon() {
  return base::system_clock().in(std::chrono::milliseconds(5000));
}

/// The first part of the answer.
asio::awaitable<std::string> said(net::ByteStream& stream, std::string text) {
  static_cast<void>(co_await stream.write_text(text));
  std::array<char, 4096> buffer{};
  auto const got = co_await stream.read_some(buffer);
  co_return std::string(buffer.data(), got.value_or(0));
}

asio::awaitable<std::string> plain(std::string address, std::uint16_t port, std::string text) {
  auto stream = co_await net::connect_tcp(address, port);
  if (!stream) co_return "not connected: " + stream.error().message();
  co_return co_await said(**stream, std::move(text));
}

asio::awaitable<std::string> secured(std::shared_ptr<tls::ClientContext> client,
                                     std::string address,
                                     std::string host,
                                     std::string text) {
  auto raw = co_await net::connect_tcp(address, 443);
  if (!raw) co_return "not connected: " + raw.error().message();
  auto stream = co_await tls::connect(std::move(client), std::move(*raw), host, soon());
  if (!stream) co_return stream.error().message();
  co_return co_await said(**stream, std::move(text));
}

/// The code of the answer and its last four bytes, as an address.
std::string resolved(std::string_view name) {
  std::string query("\x12\x34\1\0\0\1\0\0\0\0\0\0", 12);
  for (; !name.empty(); name.remove_prefix(std::min(name.find('.'), name.size() - 1) + 1)) {
    auto const label = name.substr(0, name.find('.'));
    query += static_cast<char>(label.size()) + std::string(label);
  }
  query += std::string("\0\0\1\0\1", 5);
  os::Fd const socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  timeval const patience{0, 200'000};
  ::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(53);
  inet_pton(AF_INET, EgressRig::resolver, &address.sin_addr);
  // SAFETY: how the socket calls want it.
  auto const* where = reinterpret_cast<sockaddr const*>(&address);
  ::sendto(socket.get(), query.data(), query.size(), 0, where, sizeof address);
  std::array<unsigned char, 512> answer{};
  auto const got = ::recv(socket.get(), answer.data(), answer.size(), 0);
  if (got < 12) return "none";
  auto const code = answer[3] & 15U;
  auto const* end = answer.data() + got;
  return answer[7] == 0 ? fmt::format("{}", code)
                        : fmt::format("{} {}.{}.{}.{}", code, end[-4], end[-3], end[-2], end[-1]);
}

struct TempDir {
  TempDir() {
    std::string name = "/tmp/selftest_rig_XXXXXX";
    path = ::mkdtemp(name.data());
  }

  ~TempDir() { std::filesystem::remove_all(path); }

  TempDir(TempDir const&) = delete;
  TempDir& operator=(TempDir const&) = delete;
  std::string path;
};

TEST(SelftestRig, ServesWhatTheCatalogueAsksFor) {
  if (::geteuid() != 0) GTEST_SKIP() << "makes a network namespace: root only";
  TempDir const directory;
  auto rig = EgressRig::start(directory.path);
  ASSERT_TRUE(rig) << rig.error().message();
  os::Fd const netns(::open(rig->uplink().c_str(), O_RDONLY | O_CLOEXEC));
  auto const entered = os::InNetns::enter(os::FdRef(netns));
  ASSERT_TRUE(entered);
  EXPECT_EQ(resolved("hostile.example"), "0 203.0.113.13");
  EXPECT_EQ(resolved("alias.example"), "0 10.1.2.3");
  EXPECT_EQ(resolved("tkname.nowhere.example"), "3");
  EXPECT_EQ(resolved("silent.example"), "none");
  auto const client = tls::ClientContext::make(rig->authority());
  ASSERT_TRUE(client);
  async::run_test([&]() -> asio::awaitable<void> {
    auto const get = [](std::string_view path) {
      return fmt::format("GET {} HTTP/1.1\r\nX-Api-Key: {}\r\n\r\n", path, planted_credential);
    };
    EXPECT_TRUE((co_await plain("203.0.113.10", 80, get("/tkplain"))).contains("hello"));
    EXPECT_TRUE((co_await plain("203.0.113.13", 80, get("/odd_status/tkodd"))).contains("2000 OK"));
    EXPECT_EQ(co_await plain("203.0.113.20", 7, "tkecho"), "tkecho");
    auto const back =
        co_await secured(*client, "203.0.113.14", "api.github.com", get("/v1/reflect/base64"));
    EXPECT_TRUE(back.contains("session=planted")) << back;
    for (auto const& flaw : flaws()) {
      auto const why = co_await secured(*client, "203.0.113.12", flaw.host, get("/tkflaw"));
      EXPECT_TRUE(why.contains("TLS handshake")) << flaw.host << ": " << why;
    }
  });
  auto const arrived = rig->arrived();
  auto const with = [&](std::string_view word, std::string_view where) {
    return std::ranges::any_of(
        arrived, [&](Arrival const& one) { return one.text.contains(word) && one.where == where; });
  };
  EXPECT_TRUE(with("tkplain", "203.0.113.10:80"));
  EXPECT_TRUE(with("tkodd", "203.0.113.13:80"));
  EXPECT_TRUE(with("tkecho", "203.0.113.20:7"));
  EXPECT_TRUE(with("/v1/reflect/base64", "203.0.113.14:443"));
  EXPECT_TRUE(with("tkname.nowhere.example", "203.0.113.53:53"));
  EXPECT_FALSE(with("tkflaw", "203.0.113.12:443"));
}

}  // namespace
}  // namespace cli::selftest
