#include "tls/tls.hpp"

#include "async/testing.hpp"

#include <sys/stat.h>
#include <sys/wait.h>

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

namespace tls {
namespace {

using std::chrono::milliseconds;
using Awaitable = asio::awaitable<void>;

base::Deadline soon() {
  return base::system_clock().in(milliseconds(5000));
}

struct TempDir {
  TempDir() {
    std::string name = "/tmp/tls_test_XXXXXX";
    path = ::mkdtemp(name.data());
  }

  ~TempDir() { std::filesystem::remove_all(path); }

  TempDir(TempDir const&) = delete;
  TempDir& operator=(TempDir const&) = delete;
  std::string path;
};

std::string content_of(std::string const& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// One installation's certificates, made once for all tests.
struct Installation {
  Installation() {
    auto const made = ensure_certificates(dir.path, "space.localhost:7443");
    EXPECT_TRUE(made.value_or(false));
    server = *ServerContext::load(dir.path + "/server.pem", dir.path + "/server.key");
    client = *ClientContext::make(dir.path + "/ca.pem");
  }

  TempDir dir;
  std::shared_ptr<ServerContext> server;
  std::shared_ptr<ClientContext> client;
};

Installation& installation() {
  static Installation one;
  return one;
}

async::Task<std::string> read_to_end(net::ByteStream& stream) {
  std::string out;
  std::array<char, 5000> buffer{};
  for (;;) {
    auto const count = co_await stream.read_some(buffer);
    if (!count) co_return std::unexpected(count.error());
    if (*count == 0) co_return out;
    out.append(buffer.data(), *count);
  }
}

Awaitable echo(std::shared_ptr<ServerContext> context, net::Stream raw) {
  auto stream = co_await accept(std::move(context), std::move(raw), soon());
  if (!stream) co_return;
  auto const text = co_await read_to_end(**stream);
  if (!text) co_return;
  (void)co_await (*stream)->write_text(*text);
  (void)co_await (*stream)->shutdown_write();
}

/// What a client that asks for `host` hears back.
async::Task<std::string> ask(std::shared_ptr<ClientContext> context,
                             std::string host,
                             std::string text) {
  auto executor = co_await asio::this_coro::executor;
  auto [near, far] = net::make_pipe(executor);
  async::TaskGroup group(executor);
  group.spawn("echo", echo(installation().server, std::move(far)));
  base::Result<std::string> answer;
  {
    auto stream = co_await connect(std::move(context), std::move(near), std::move(host), soon());
    if (stream) {
      (void)co_await (*stream)->write_text(text);
      (void)co_await (*stream)->shutdown_write();
      answer = co_await read_to_end(**stream);
    } else {
      answer = base::passing(stream);
    }
  }
  co_await group.join();
  co_return answer;
}

TEST(Tls, CarriesBytesBothWaysAndHalfCloses) {
  async::run_test([]() -> Awaitable {
    std::string const text(300'000, 'x');
    auto const answer = co_await ask(installation().client, "space.localhost", text);
    EXPECT_EQ(answer.value_or(""), text);
  });
}

TEST(Tls, TheNameMustBeOneOfTheCertificate) {
  async::run_test([]() -> Awaitable {
    for (std::string const host : {"space.localhost",
                                   "api.space.localhost",
                                   "49983-iabcdef0123456789.space.localhost",
                                   "localhost",
                                   "127.0.0.1",
                                   "::1"}) {
      EXPECT_EQ((co_await ask(installation().client, host, "hi")).value_or("?"), "hi") << host;
    }
    for (std::string const host :
         {"other.localhost", "a.b.space.localhost", "10.0.0.1", "space.localhost.evil.test", ""}) {
      EXPECT_FALSE(co_await ask(installation().client, host, "hi")) << host;
    }
  });
}

TEST(Tls, AnotherAuthorityIsNotTrusted) {
  TempDir const other;
  ASSERT_TRUE(ensure_certificates(other.path, "space.localhost"));
  async::run_test([&]() -> Awaitable {
    auto const answer =
        co_await ask(*ClientContext::make(other.path + "/ca.pem"), "space.localhost", "hi");
    EXPECT_FALSE(answer);
    EXPECT_TRUE(answer.error().message().contains("certificate")) << answer.error().message();
    EXPECT_FALSE(co_await ask(*ClientContext::make(""), "space.localhost", "hi"));
  });
}

/// Among others, in any order, beside one of the same name and beside what is no certificate.
TEST(Tls, TrustsExactlyTheAuthoritiesOfAText) {
  TempDir const other;
  ASSERT_TRUE(ensure_certificates(other.path, "space.localhost"));
  auto const ours = content_of(installation().dir.path + "/ca.pem");
  auto const same_name = content_of(other.path + "/ca.pem");
  auto const system = content_of("/etc/ssl/certs/ca-certificates.crt");
  std::string const junk =
      "-----BEGIN CERTIFICATE-----\nMAMCAQU=\n-----END CERTIFICATE-----\n"
      "-----BEGIN NOTHING-----\nMAMCAQU=\n-----END NOTHING-----\n";
  async::run_test([&]() -> Awaitable {
    for (auto const& text : {ours,
                             system + ours,
                             ours + system,
                             same_name + ours,
                             ours + same_name,
                             junk + ours,
                             ours + ours}) {
      auto const context = ClientContext::from_pem(text);
      EXPECT_TRUE(context);
      // Twice: read the first time, and known the second.
      for (int i = 0; i < 2; ++i)
        EXPECT_EQ((co_await ask(*context, "space.localhost", "hi")).value_or("?"), "hi");
      EXPECT_FALSE(co_await ask(*context, "other.localhost", "hi"));
    }
    for (auto const& text : {same_name, system + same_name}) {
      auto const answer = co_await ask(*ClientContext::from_pem(text), "space.localhost", "hi");
      EXPECT_FALSE(answer);
    }
  });
  for (auto const& text : {std::string(), junk, std::string("no PEM at all")})
    EXPECT_FALSE(ClientContext::from_pem(text));
}

TEST(Tls, ASilentPeerEndsTheHandshakeAtItsDeadline) {
  async::run_test([]() -> Awaitable {
    auto executor = co_await asio::this_coro::executor;
    auto [near, far] = net::make_pipe(executor);
    auto const deadline = base::system_clock().in(milliseconds(30));
    auto const served = co_await accept(installation().server, std::move(far), deadline);
    EXPECT_EQ(served.error().code(), base::Code::deadline_exceeded);
    std::array<char, 10> buffer{};
    EXPECT_EQ((co_await near->read_some(buffer)).value_or(1), 0U);  // and the connection is gone
    auto [garbage, target] = net::make_pipe(executor);
    (void)co_await garbage->write_text("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    auto const refused = co_await accept(installation().server, std::move(target), soon());
    EXPECT_EQ(refused.error().code(), base::Code::unavailable);
  });
}

TEST(Tls, AnEndWithoutCloseNotifyIsNotTheEndOfTheStream) {
  async::run_test([]() -> Awaitable {
    auto executor = co_await asio::this_coro::executor;
    auto [near, far] = net::make_pipe(executor);
    async::TaskGroup group(executor);
    auto cut = [](net::Stream raw) -> Awaitable {
      auto stream = co_await accept(installation().server, std::move(raw), soon());
      (void)co_await (*stream)->write_text("half");
      (*stream)->close();
    };
    group.spawn("cut", cut(std::move(far)));
    auto stream = co_await connect(installation().client, std::move(near), "localhost", soon());
    auto const text = co_await read_to_end(**stream);
    EXPECT_FALSE(text);
    co_await group.join();
  });
}

TEST(Tls, ReadsWhileItWrites) {
  async::run_test([]() -> Awaitable {
    auto executor = co_await asio::this_coro::executor;
    auto [near, far] = net::make_pipe(executor);
    async::TaskGroup group(executor);
    auto flood = [](net::ByteStream* to) -> Awaitable {
      (void)co_await to->write_text(std::string(1 << 20, 'a'));
      (void)co_await to->shutdown_write();
    };
    auto serve = [flood](net::Stream raw) -> Awaitable {
      auto stream = co_await accept(installation().server, std::move(raw), soon());
      async::TaskGroup inner(co_await asio::this_coro::executor);
      inner.spawn("flood", flood(stream->get()));
      auto const heard = co_await read_to_end(**stream);
      EXPECT_EQ(heard.value_or("").size(), std::size_t{1} << 20);
      co_await inner.join();
    };
    group.spawn("serve", serve(std::move(far)));
    auto stream = co_await connect(installation().client, std::move(near), "localhost", soon());
    group.spawn("flood", flood(stream->get()));
    auto const heard = co_await read_to_end(**stream);
    EXPECT_EQ(heard.value_or("").size(), std::size_t{1} << 20);
    co_await group.join();
  });
}

/// A real, foreign client: `openssl s_client`, its output and its exit code.
struct Foreign {
  int exit_code = -1;
  std::string output;
};

Foreign run_s_client(std::uint16_t port, std::string const& arguments) {
  auto const command = fmt::format(
      "printf 'hello\\n' | timeout 10 openssl s_client -connect 127.0.0.1:{} -CAfile {}/ca.pem "
      "-verify_return_error {} 2>&1",
      port,
      installation().dir.path,
      arguments);
  Foreign out;
  std::unique_ptr<FILE, int (*)(FILE*)> pipe(::popen(command.c_str(), "r"), ::pclose);
  std::array<char, 4096> buffer{};
  while (auto const count = ::fread(buffer.data(), 1, buffer.size(), pipe.get()))
    out.output.append(buffer.data(), count);
  out.exit_code = WEXITSTATUS(::pclose(pipe.release()));
  return out;
}

Foreign ask_with_s_client(std::string const& arguments) {
  Foreign result;
  async::run_test([&]() -> Awaitable {
    auto executor = co_await asio::this_coro::executor;
    auto listener = net::listen_tcp(executor, "127.0.0.1", 0);
    async::TaskGroup group(executor);
    auto serve = [](net::Listener* on) -> Awaitable {
      auto raw = co_await on->accept();
      if (!raw) co_return;
      auto stream = co_await accept(installation().server, std::move(*raw), soon());
      if (!stream) co_return;
      std::array<char, 100> buffer{};
      auto const count = co_await (*stream)->read_some(buffer);
      if (count)
        (void)co_await (*stream)->write_text("heard " + std::string(buffer.data(), *count));
      (void)co_await (*stream)->shutdown_write();
    };
    group.spawn("serve", serve(listener->get()));
    auto const port = (*listener)->port();
    auto run = [port, &arguments] { return run_s_client(port, arguments); };
    result = co_await async::blocking(std::move(run));
    (*listener)->close();
    co_await group.join();
  });
  return result;
}

TEST(Tls, AForeignClientAgreesOnVersionNameAndProtocol) {
  for (std::string const version : {"-tls1_2", "-tls1_3"}) {
    auto const result = ask_with_s_client(version +
                                          " -servername x.space.localhost -verify_hostname "
                                          "x.space.localhost -alpn h2,http/1.1 -quiet");
    EXPECT_TRUE(result.output.contains("heard hello")) << result.output;
  }
  auto const told = ask_with_s_client("-verify_hostname localhost -alpn h2,http/1.1 -ign_eof");
  EXPECT_TRUE(told.output.contains("ALPN protocol: http/1.1")) << told.output;
}

TEST(Tls, OldVersionsAndHttp2OnlyAreRefused) {
  auto const old = ask_with_s_client("-tls1_1 -cipher ALL:@SECLEVEL=0");
  EXPECT_NE(old.exit_code, 0);
  EXPECT_FALSE(old.output.contains("heard")) << old.output;
  auto const only_h2 = ask_with_s_client("-alpn h2");
  EXPECT_NE(only_h2.exit_code, 0);
  EXPECT_TRUE(only_h2.output.contains("no application protocol")) << only_h2.output;
}

TEST(Certificates, AreMadeOnceAndKeepTheirAuthority) {
  TempDir const dir;
  EXPECT_TRUE(*ensure_certificates(dir.path, "a.test:7443"));
  auto const authority = content_of(dir.path + "/ca.pem");
  auto const leaf = content_of(dir.path + "/server.pem");
  EXPECT_FALSE(*ensure_certificates(dir.path, "a.test"));
  EXPECT_EQ(content_of(dir.path + "/server.pem"), leaf);
  EXPECT_TRUE(*ensure_certificates(dir.path, "b.test"));  // another domain
  EXPECT_NE(content_of(dir.path + "/server.pem"), leaf);
  std::filesystem::remove(dir.path + "/server.key");
  EXPECT_TRUE(*ensure_certificates(dir.path, "b.test"));
  std::ofstream(dir.path + "/server.pem") << "torn";
  EXPECT_TRUE(*ensure_certificates(dir.path, "b.test"));
  EXPECT_EQ(content_of(dir.path + "/ca.pem"), authority);
  for (std::string const key : {"/ca.key", "/server.key"}) {
    struct stat status{};
    ASSERT_EQ(::stat((dir.path + key).c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777, 0600U);
  }
  for (auto const& entry : std::filesystem::directory_iterator(dir.path))
    EXPECT_FALSE(entry.path().string().ends_with(".new"));
}

TEST(Certificates, AnExpiringLeafIsReplaced) {
  TempDir const dir;
  ASSERT_TRUE(ensure_certificates(dir.path, "a.test"));
  // A foreign leaf of the same authority with 29 days left.
  auto const command = fmt::format(
      "cd {} && openssl req -new -key server.key -subj /CN=a.test -out r.csr 2>/dev/null && printf "
      "'subjectAltName=DNS:a.test,DNS:*.a.test' > e && "
      "openssl x509 -req -in r.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days DAYS -extfile e "
      "-out server.pem 2>/dev/null",
      dir.path);
  auto const with_days = [&](std::string const& days) {
    auto text = command;
    text.replace(text.find("DAYS"), 4, days);
    std::unique_ptr<FILE, int (*)(FILE*)> const pipe(::popen(text.c_str(), "r"), ::pclose);
  };
  with_days("31");
  EXPECT_FALSE(*ensure_certificates(dir.path, "a.test"));
  with_days("29");
  EXPECT_TRUE(*ensure_certificates(dir.path, "a.test"));
}

TEST(Certificates, NeverReplaceAnAuthorityByThemselves) {
  TempDir const dir;
  ASSERT_TRUE(ensure_certificates(dir.path, "a.test"));
  std::filesystem::remove(dir.path + "/ca.key");
  auto const without_key = ensure_certificates(dir.path, "b.test");
  EXPECT_EQ(without_key.error().code(), base::Code::conflict);
  for (std::string const domain :
       {"", "a", "A.test", "a b.test", "a.test,DNS:evil.test", ".test", "a.test."}) {
    EXPECT_EQ(ensure_certificates(dir.path, domain).error().code(), base::Code::invalid_argument)
        << domain;
  }
  EXPECT_FALSE(ensure_certificates(dir.path + "/absent", "a.test"));
  EXPECT_FALSE(ServerContext::load(dir.path + "/absent", dir.path + "/absent"));
  EXPECT_FALSE(ClientContext::make(dir.path + "/absent"));
}

}  // namespace
}  // namespace tls
