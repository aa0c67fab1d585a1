#include "worker/reflections.hpp"

#include "async/testing.hpp"
#include "worker/testing/fakes.hpp"

#include <fstream>

#include <gmock/gmock.h>

namespace worker {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;
using testing::TempDir;

wire::Reflected reflected(std::string credential, std::uint32_t version, std::int64_t at) {
  return {"i0123456789abcdefghij", std::move(credential), version, "key", "api.example", at};
}

TEST(Reflections, AreTheNextWorkersUntilTheApiHasThem) {
  async::run_test([]() -> boost::asio::awaitable<void> {
    TempDir const dir;
    auto const executor = co_await boost::asio::this_coro::executor;
    auto const path = dir.path() + "/reflected.json";
    {
      Reflections first(executor, path);
      EXPECT_TRUE(co_await first.open()) << "there is none yet";
      first.note(reflected("a", 1, 10));
      EXPECT_TRUE(first.holds("a", 1)) << "at once";
      EXPECT_FALSE(first.holds("a", 2));
      first.note(reflected("b", 1, 11));
      EXPECT_TRUE(co_await first.keep());
    }
    Reflections second(executor, path);
    EXPECT_TRUE(co_await second.open());
    EXPECT_THAT(second.all(), SizeIs(2));
    EXPECT_TRUE(second.holds("a", 1));
    second.note(reflected("a", 1, 20));  // once more, before the API says that it has the first
    EXPECT_TRUE(co_await second.taken(reflected("a", 1, 10)));
    EXPECT_TRUE(second.holds("a", 1)) << "it is not the one that came back last";
    EXPECT_TRUE(co_await second.taken(reflected("a", 1, 20)));
    EXPECT_FALSE(second.holds("a", 1));
    Reflections third(executor, path);
    EXPECT_TRUE(co_await third.open());
    EXPECT_THAT(third.all(), SizeIs(1));
    EXPECT_TRUE(third.holds("b", 1));
  });
}

TEST(Reflections, WhoHasManyPushesOutNobodyElses) {
  async::run_test([]() -> boost::asio::awaitable<void> {
    Reflections all(co_await boost::asio::this_coro::executor, "/nonexistent/reflected.json");
    auto others = reflected("others", 1, 1);
    others.sandbox = "iothers";
    all.note(others);
    for (int i = 0; i < 1000; ++i)
      all.note(reflected(std::to_string(i), 1, i + 2));
    EXPECT_THAT(all.all(), SizeIs(256));
    EXPECT_TRUE(all.holds("others", 1));
    EXPECT_TRUE(all.holds("999", 1));
  });
}

TEST(Reflections, AreBounded) {
  async::run_test([]() -> boost::asio::awaitable<void> {
    Reflections all(co_await boost::asio::this_coro::executor, "/nonexistent/reflected.json");
    for (int i = 0; i < 1000; ++i)
      all.note(reflected(std::to_string(i), 1, i + 1));
    EXPECT_THAT(all.all(), SizeIs(256));
    EXPECT_TRUE(all.holds("999", 1));
    EXPECT_FALSE(co_await all.keep()) << "there is no such directory";
    EXPECT_TRUE(all.holds("999", 1));
  });
}

TEST(Reflections, ADamagedListIsAnErrorThatSaysWhatToDo) {
  async::run_test([]() -> boost::asio::awaitable<void> {
    TempDir const dir;
    auto const path = dir.path() + "/reflected.json";
    std::ofstream(path) << R"({"reflected":[{"sandbox":"i)";
    Reflections all(co_await boost::asio::this_coro::executor, path);
    auto const opened = co_await all.open();
    EXPECT_FALSE(opened);
    if (!opened) EXPECT_THAT(opened.error().message(), HasSubstr("remove " + path));
  });
}

}  // namespace
}  // namespace worker
