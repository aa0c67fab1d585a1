#include "agent/loopback_forward.hpp"

#include "async/testing.hpp"

#include <sys/wait.h>

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

namespace agent {
namespace {

constexpr std::string_view head =
    "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout\n";

std::map<std::uint16_t, std::string> ports_of(std::string_view tcp, std::string_view tcp6 = {}) {
  return loopback_only_ports(tcp, tcp6, [](std::uint16_t port) { return port == 9000; });
}

TEST(LoopbackOnlyPorts, AreListenersThatNothingElseCovers) {
  auto const found = ports_of(std::string(head) +
                                  "   0: 0100007F:1F40 00000000:0000 0A 00000000:00000000\n"
                                  "   1: 00000000:C33F 00000000:0000 0A 00000000:00000000\n"
                                  "   2: 0500007F:1F41 00000000:0000 0A 00000000:00000000\n"
                                  "   3: 0100007F:1F42 0100007F:0001 01 00000000:00000000\n"
                                  "   4: 0100007F:1F43 00000000:0000 0A 00000000:00000000\n"
                                  "   5: 0100007F:2328 00000000:0000 0A 00000000:00000000\n"
                                  "   6: 020200C0:2328 00000000:0000 0A 00000000:00000000\n",
                              "   0: 00000000000000000000000001000000:1F44 0:0000 0A\n"
                              "   1: 00000000000000000000000000000000:1F43 0:0000 0A\n"
                              "   2: 0000000000000000FFFF00000100007F:1F45 0:0000 0A\n");
  EXPECT_EQ(found,
            (std::map<std::uint16_t, std::string>{{8000, "127.0.0.1"},
                                                  {8001, "127.0.0.5"},
                                                  {8004, "::1"},
                                                  {8005, "127.0.0.1"},
                                                  {9000, "127.0.0.1"}}));
}

TEST(LoopbackOnlyPorts, ReadOverWhatIsNoLine) {
  EXPECT_TRUE(ports_of("\n\n0\n0: 0100007F\n0: 0100007F:zz 0 0A\n0: 0100007F:1F4000 0 0A\n"
                       "0: 0100007F:0000 0 0A\n0: :1F40 0 0A")
                  .empty());
}

class Table {
 public:
  Table() {
    std::string pattern = std::filesystem::temp_directory_path() / "forward_test.XXXXXX";
    path_ = ::mkdtemp(pattern.data());
    list(0);
  }

  ~Table() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  Table(Table const&) = delete;
  Table& operator=(Table const&) = delete;

  void list(std::uint16_t port) const {
    std::ofstream file(path_ + "/tcp");
    if (port != 0) file << fmt::format("   0: 0100007F:{:04X} 00000000:0000 0A\n", port);
  }

  std::string path() const { return path_ + "/tcp"; }

 private:
  std::string path_;
};

async::Task<net::Stream> dial_until(std::uint16_t port, bool connected) {
  for (int turn = 0;; ++turn) {
    auto stream = co_await net::connect_tcp("127.0.0.2", port);
    if (stream.has_value() == connected || turn > 500) co_return stream;
    co_await async::sleep_for(std::chrono::milliseconds(10));
  }
}

asio::awaitable<void> answer_one(net::Listener* listener) {
  auto stream = co_await listener->accept();
  std::array<char, 64> buffer{};
  auto const count = co_await (*stream)->read_some(buffer);
  auto const sent = co_await (*stream)->write_text("got " + std::string(buffer.data(), *count));
  EXPECT_TRUE(sent);
}

TEST(LoopbackForwarder, CarriesConnectionsForAsLongAsTheServerListens) {
  Table const table;
  async::run_test([&table]() -> asio::awaitable<void> {
    auto const executor = co_await asio::this_coro::executor;
    auto server = net::listen_tcp(executor, "127.0.0.1", 0).value();
    LoopbackForwarder forwarder(
        executor, {"127.0.0.2", table.path(), "/nonexistent", std::chrono::milliseconds(10)});
    async::TaskGroup tasks(executor);
    forwarder.start();
    table.list(server->port());
    tasks.spawn("server", answer_one(server.get()));
    auto outside = co_await dial_until(server->port(), true);
    EXPECT_TRUE(outside);
    if (outside) {
      auto const sent = co_await (*outside)->write_text("hello");
      EXPECT_TRUE(sent);
      std::string text;
      std::array<char, 64> buffer{};
      for (;;) {
        auto const count = co_await (*outside)->read_some(buffer);
        if (!count || *count == 0) break;
        text.append(buffer.data(), *count);
      }
      EXPECT_EQ(text, "got hello");
    }
    co_await tasks.join();
    table.list(0);
    auto const refused = co_await dial_until(server->port(), false);
    EXPECT_FALSE(refused);
    co_await forwarder.close();
  });
}

TEST(LoopbackForwarder, ReadsNoTableWhileNobodyIsThere) {
  Table const table;
  async::run_test([&table]() -> asio::awaitable<void> {
    auto const executor = co_await asio::this_coro::executor;
    auto server = net::listen_tcp(executor, "127.0.0.1", 0).value();
    auto anybody = std::make_shared<bool>(false);
    auto looks = std::make_shared<int>(0);
    LoopbackForwarder forwarder(executor,
                                {"127.0.0.2",
                                 table.path(),
                                 "/nonexistent",
                                 std::chrono::milliseconds(10),
                                 [anybody, looks] {
                                   ++*looks;
                                   return *anybody;
                                 }});
    table.list(server->port());
    forwarder.start();
    while (*looks < 3)
      co_await async::sleep_for(std::chrono::milliseconds(5));
    auto const early = co_await net::connect_tcp("127.0.0.2", server->port());
    EXPECT_FALSE(early);
    *anybody = true;
    auto const carried = co_await dial_until(server->port(), true);
    EXPECT_TRUE(carried);
    *anybody = false;
    auto const refused = co_await dial_until(server->port(), false);
    EXPECT_FALSE(refused);
    co_await forwarder.close();
  });
}

// In a process of its own, which has no children that another test forgot.
int looks_around_one_child() {
  int found = has_children() ? 1 : 0;
  auto const child = ::fork();
  if (child < 0) return 64;
  if (child == 0) ::_exit(0);
  siginfo_t ended{};
  ::waitid(P_PID, static_cast<id_t>(child), &ended, WEXITED | WNOWAIT);
  if (has_children()) found |= 2;  // it has ended and is not reaped
  ::waitpid(child, nullptr, 0);
  if (has_children()) found |= 4;
  return found;
}

TEST(HasChildren, FromTheStartOfOneUntilItIsReaped) {
  auto const looker = ::fork();
  ASSERT_GE(looker, 0);
  if (looker == 0) ::_exit(looks_around_one_child());
  int status = 0;
  ASSERT_EQ(::waitpid(looker, &status, 0), looker);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 2);
}

}  // namespace
}  // namespace agent
