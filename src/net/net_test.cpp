#include "async/testing.hpp"
#include "net/byte_stream.hpp"

#include <sys/socket.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>
#include <unistd.h>

namespace net {
namespace {

async::Task<std::string> read_to_end(ByteStream& stream) {
  std::string out;
  std::array<char, 1000> buffer{};
  for (;;) {
    auto const count = co_await stream.read_some(buffer);
    if (!count) co_return std::unexpected(count.error());
    if (*count == 0) co_return out;
    out.append(buffer.data(), *count);
  }
}

asio::awaitable<void> echo_once(Listener* listener) {
  auto stream = co_await listener->accept();
  if (!stream) co_return;
  auto const text = co_await read_to_end(**stream);
  if (!text) co_return;
  auto const written = co_await (*stream)->write_text(*text);
  EXPECT_TRUE(written);
}

asio::awaitable<void> check_echo(Stream stream) {
  std::string const sent(300'000, 'x');
  auto const written = co_await stream->write_text(sent);
  EXPECT_TRUE(written);
  auto const ended = co_await stream->shutdown_write();
  EXPECT_TRUE(ended);
  auto const back = co_await read_to_end(*stream);
  EXPECT_TRUE(back);
  EXPECT_EQ(back.value_or(""), sent);
}

struct TempDir {
  TempDir() {
    std::string name = "/tmp/net_test_XXXXXX";
    path = ::mkdtemp(name.data());
  }

  ~TempDir() { std::filesystem::remove_all(path); }

  TempDir(TempDir const&) = delete;
  TempDir& operator=(TempDir const&) = delete;
  std::string path;
};

TEST(Tcp, CarriesBytesBothWaysAndHalfCloses) {
  for (std::string const address : {"127.0.0.1", "::1"}) {
    async::run_test([address]() -> asio::awaitable<void> {
      auto executor = co_await asio::this_coro::executor;
      auto listener = listen_tcp(executor, address, 0);
      if (!listener && address == "::1") co_return;  // a host without IPv6
      EXPECT_TRUE(listener);
      async::TaskGroup group(executor);
      group.spawn("echo", echo_once(listener->get()));
      auto stream = co_await connect_tcp(address, (*listener)->port());
      EXPECT_TRUE(stream);
      EXPECT_TRUE((*stream)->peer_name().starts_with(address == "::1" ? "[::1]:" : "127.0.0.1:"));
      co_await check_echo(std::move(*stream));
      co_await group.join();
    });
  }
}

TEST(Tcp, ARefusedConnectionIsUnavailable) {
  async::run_test([]() -> asio::awaitable<void> {
    auto executor = co_await asio::this_coro::executor;
    auto listener = listen_tcp(executor, "127.0.0.1", 0);
    auto const port = (*listener)->port();
    (*listener)->close();
    auto stream = co_await connect_tcp("127.0.0.1", port);
    EXPECT_EQ(stream.error().code(), base::Code::unavailable);
    auto no_name = co_await connect_tcp("localhost", port);
    EXPECT_EQ(no_name.error().code(), base::Code::invalid_argument);
  });
}

TEST(Tcp, APortInUseIsAConflict) {
  async::run_test([]() -> asio::awaitable<void> {
    auto executor = co_await asio::this_coro::executor;
    auto listener = listen_tcp(executor, "127.0.0.1", 0);
    auto second = listen_tcp(executor, "127.0.0.1", (*listener)->port());
    EXPECT_EQ(second.error().code(), base::Code::conflict);
  });
}

TEST(ConnectHost, ResolvesLocalhost) {
  async::run_test([]() -> asio::awaitable<void> {
    auto executor = co_await asio::this_coro::executor;
    auto listener = listen_tcp(executor, "127.0.0.1", 0);
    async::TaskGroup group(executor);
    group.spawn("echo", echo_once(listener->get()));
    auto stream = co_await connect_host("localhost", (*listener)->port());
    EXPECT_TRUE(stream);
    co_await check_echo(std::move(*stream));
    co_await group.join();
    auto nowhere = co_await connect_host("no-such-host.invalid", 1);
    EXPECT_EQ(nowhere.error().code(), base::Code::unavailable);
  });
}

TEST(Unix, CarriesBytesAndTellsThePeersUser) {
  TempDir const dir;
  async::run_test([&dir]() -> asio::awaitable<void> {
    auto executor = co_await asio::this_coro::executor;
    auto const path = dir.path + "/a.sock";
    auto first = listen_unix(executor, path);
    EXPECT_TRUE(first);
    (*first)->close();
    auto listener = listen_unix(executor, path);  // the stale file of the first one is in the way
    EXPECT_TRUE(listener);
    struct stat status{};
    EXPECT_EQ(::stat(path.c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777, 0660U);
    async::TaskGroup group(executor);
    group.spawn("echo", echo_once(listener->get()));
    auto stream = co_await connect_unix(path);
    EXPECT_TRUE(stream);
    EXPECT_EQ((*stream)->peer_name(), fmt::format("unix:uid={}", ::getuid()));
    EXPECT_EQ(peer_user(**stream)->uid, ::getuid());
    EXPECT_EQ(peer_user(**stream)->pid, ::getpid());
    co_await check_echo(std::move(*stream));
    co_await group.join();
  });
}

TEST(Unix, NeverReplacesAFileThatIsNoSocket) {
  TempDir const dir;
  async::run_test([&dir]() -> asio::awaitable<void> {
    auto const path = dir.path + "/precious";
    std::ofstream(path) << "text";
    auto listener = listen_unix(co_await asio::this_coro::executor, path);
    EXPECT_EQ(listener.error().code(), base::Code::conflict);
    EXPECT_TRUE(std::filesystem::is_regular_file(path));
    auto too_long = listen_unix(co_await asio::this_coro::executor, std::string(108, 'x'));
    EXPECT_EQ(too_long.error().code(), base::Code::invalid_argument);
    auto absent = co_await connect_unix(dir.path + "/absent");
    EXPECT_EQ(absent.error().code(), base::Code::unavailable);
  });
}

TEST(Listener, CloseEndsAcceptAsCancelled) {
  async::run_test([]() -> asio::awaitable<void> {
    auto executor = co_await asio::this_coro::executor;
    auto listener = listen_tcp(executor, "127.0.0.1", 0);
    async::TaskGroup group(executor);
    bool ended = false;
    auto accept = [](Listener* on, bool* done) -> asio::awaitable<void> {
      auto stream = co_await on->accept();
      *done = !stream && stream.error().code() == base::Code::cancelled;
    };
    group.spawn("accept", accept(listener->get(), &ended));
    co_await async::sleep_for(std::chrono::milliseconds(1));
    (*listener)->close();
    co_await group.join();
    EXPECT_TRUE(ended);
  });
}

TEST(Adopt, RefusesWhatIsNoStreamSocket) {
  async::run_test([]() -> asio::awaitable<void> {
    auto executor = co_await asio::this_coro::executor;
    auto datagram = adopt_socket(executor, os::Fd(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)));
    EXPECT_EQ(datagram.error().code(), base::Code::invalid_argument);
    auto not_listening =
        adopt_listener(executor, os::Fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)));
    EXPECT_EQ(not_listening.error().code(), base::Code::invalid_argument);
    auto nothing = adopt_socket(executor, os::Fd());
    EXPECT_FALSE(nothing);
  });
}

TEST(Pipe, HoldsBackAWriterWhoseReaderIsSlow) {
  async::run_test([]() -> asio::awaitable<void> {
    auto executor = co_await asio::this_coro::executor;
    auto [a, b] = make_pipe(executor);
    async::TaskGroup group(executor);
    bool written = false;
    auto write = [](ByteStream* to, bool* done) -> asio::awaitable<void> {
      auto const sent = co_await to->write_text(std::string(1 << 20, 'x'));
      *done = sent.has_value();
      auto const ended = co_await to->shutdown_write();
      EXPECT_TRUE(ended);
    };
    group.spawn("write", write(a.get(), &written));
    co_await async::sleep_for(std::chrono::milliseconds(1));
    EXPECT_FALSE(written);
    auto const all = co_await read_to_end(*b);
    EXPECT_EQ(all->size(), std::size_t{1} << 20);
    co_await group.join();
    EXPECT_TRUE(written);
    b->close();
    auto const late = co_await a->write_text("x");
    EXPECT_EQ(late.error().code(), base::Code::unavailable);
  });
}

TEST(Relay, CopiesBothWaysAndRespectsHalfClose) {
  async::run_test([]() -> asio::awaitable<void> {
    auto executor = co_await asio::this_coro::executor;
    auto [client, left] = make_pipe(executor);
    auto [right, server] = make_pipe(executor);
    async::TaskGroup group(executor);
    std::size_t moved = 0;
    auto run = [](ByteStream* a, ByteStream* b, std::size_t* count) -> asio::awaitable<void> {
      auto add = [count](std::size_t bytes) { *count += bytes; };
      co_await relay(*a, *b, std::move(add));
    };
    group.spawn("relay", run(left.get(), right.get(), &moved));
    auto sent = co_await client->write_text("question");
    EXPECT_TRUE(sent);
    auto half = co_await client->shutdown_write();
    EXPECT_TRUE(half);
    auto const question = co_await read_to_end(*server);
    EXPECT_EQ(*question, "question");
    auto answered = co_await server->write_text("answer!");
    EXPECT_TRUE(answered);
    server->close();
    auto const answer = co_await read_to_end(*client);
    EXPECT_EQ(*answer, "answer!");
    co_await group.join();
    EXPECT_EQ(moved, 15U);
  });
}

TEST(Relay, CancellationClosesBothSides) {
  async::run_test([]() -> asio::awaitable<void> {
    auto executor = co_await asio::this_coro::executor;
    auto [client, left] = make_pipe(executor);
    auto [right, server] = make_pipe(executor);
    async::TaskGroup group(executor);
    auto run = [](ByteStream* a, ByteStream* b) -> asio::awaitable<void> {
      co_await relay(*a, *b);
    };
    group.spawn("relay", run(left.get(), right.get()));
    co_await async::sleep_for(std::chrono::milliseconds(1));
    group.cancel();
    co_await group.join();
    auto const end = co_await read_to_end(*client);
    EXPECT_EQ(end.value_or("?"), "");
  });
}

}  // namespace
}  // namespace net
