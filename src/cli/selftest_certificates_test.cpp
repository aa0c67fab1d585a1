#include "cli/selftest_certificates.hpp"

#include "async/testing.hpp"
#include "tls/tls.hpp"

#include <filesystem>
#include <map>

#include <gtest/gtest.h>

namespace cli::selftest {
namespace {

namespace asio = boost::asio;

base::Deadline soon() {
  return base::system_clock().in(std::chrono::milliseconds(5000));
}

asio::awaitable<void> serve(std::shared_ptr<tls::ServerContext> context, net::Stream raw) {
  static_cast<void>(co_await tls::accept(std::move(context), std::move(raw), soon()));
}

/// "" when a client takes the certificate of `flaw`, else why it does not.
asio::awaitable<std::string> refusal(std::shared_ptr<tls::ClientContext> client,
                                     std::string directory,
                                     Flaw flaw) {
  auto executor = co_await asio::this_coro::executor;
  auto const path = directory + "/" + flaw.host;
  auto server = tls::ServerContext::load(path + ".pem", path + ".key");
  if (!server) co_return "not loaded: " + server.error().message();
  auto [near, far] = net::make_pipe(executor);
  async::TaskGroup group(executor);
  group.spawn("serve", serve(*server, std::move(far)));
  std::string why;
  {
    auto stream = co_await tls::connect(client, std::move(near), flaw.host, soon());
    if (!stream) why = stream.error().message();
  }
  co_await group.join();
  co_return why;
}

TEST(SelftestCertificates, EachIsRefusedForItsFlawAndNothingElse) {
  std::string directory = "/tmp/selftest_certificates_XXXXXX";
  ASSERT_NE(::mkdtemp(directory.data()), nullptr);
  auto issuer = Issuer::make();
  ASSERT_TRUE(issuer);
  auto client = tls::ClientContext::from_pem((*issuer)->authority_pem());
  ASSERT_TRUE(client);
  async::run_test([&]() -> asio::awaitable<void> {
    Flaw const none{.host = "fine.example", .alternative = "fine.example"};
    EXPECT_TRUE((*issuer)->write(none, directory));
    EXPECT_EQ(co_await refusal(*client, directory, none), "");
    std::map<std::string, std::string> const words = {{"selfsigned.example", "self-signed"},
                                                      {"expired.example", "expired"},
                                                      {"wrongname.example", "mismatch"},
                                                      {"cnonly.example", "mismatch"},
                                                      {"deep.wild.example", "mismatch"}};
    EXPECT_EQ(flaws().size(), words.size());
    for (auto const& flaw : flaws()) {
      EXPECT_TRUE((*issuer)->write(flaw, directory));
      auto const why = co_await refusal(*client, directory, flaw);
      EXPECT_TRUE(why.contains(words.at(flaw.host))) << flaw.host << ": " << why;
    }
  });
  std::filesystem::remove_all(directory);
}

}  // namespace
}  // namespace cli::selftest
