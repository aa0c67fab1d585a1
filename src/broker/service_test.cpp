#include "broker/service.hpp"

#include "async/testing.hpp"

#include <filesystem>

#include <gtest/gtest.h>
#include <unistd.h>

namespace broker {
namespace {

TEST(Service, AGatewayHasOneConnection) {
  async::run_test([]() -> boost::asio::awaitable<void> {
    auto const executor = co_await boost::asio::this_coro::executor;
    std::string directory = testing::TempDir() + "/broker-XXXXXX";
    EXPECT_NE(::mkdtemp(directory.data()), nullptr);
    auto keys = open_file_keys(directory);
    EXPECT_TRUE(keys);
    Vault vault(**keys, base::system_clock());
    Service service(executor, vault, ::getuid(), ::getuid());
    EXPECT_TRUE(service.listen(directory + "/broker.sock", directory + "/use.sock"));
    auto first = co_await net::connect_unix(directory + "/use.sock");
    auto second = co_await net::connect_unix(directory + "/use.sock");
    EXPECT_TRUE(first && second);
    std::array<char, 256> buffer{};
    auto const ended = co_await (*first)->read_some(buffer);
    EXPECT_TRUE(!ended || *ended == 0) << "it was replaced";
    wire::Use use;
    use.credential = "llm-key";
    use.question = 1;
    auto const sent = co_await (*second)->write_text(wire::encode_text(use) + "\n");
    EXPECT_TRUE(sent);
    auto const got = co_await (*second)->read_some(buffer);
    EXPECT_TRUE(got && std::string_view(buffer.data(), *got).contains("not_found"));
    co_await service.close();
    std::filesystem::remove_all(directory);
  });
}

}  // namespace
}  // namespace broker
