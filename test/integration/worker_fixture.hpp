#pragma once

#include "async/testing.hpp"
#include "base/id.hpp"
#include "integration/guest_fixture.hpp"
#include "worker/worker.hpp"

namespace test {

/// Workers, one after the other, on a space-hostd with a real guest; the template is "empty".
class WithWorkers : public ::testing::Test {
 protected:
  void SetUp() override {
    auto const missing = why_no_guest(installation_);
    if (!missing.empty()) GTEST_SKIP() << missing;
    ASSERT_TRUE(make_empty_disk(installation_.config().pool() + "/templates/empty/disk.img"))
        << "mke2fs (e2fsprogs) failed";
    hostd_.emplace(installation_);
  }

  /// Emulated: it works everywhere.
  wire::Config config() const {
    auto config = installation_.config();
    config.accelerator = "tcg";
    return config;
  }

  static wire::StartSandbox request() {
    wire::StartSandbox request;
    request.sandbox = base::SandboxId::make().str();
    request.epoch = 1;
    request.build = "empty";
    return request;
  }

  /// One life of a worker; afterwards all is left as it is, as after a kill.
  static void life(wire::Config config,
                   std::function<boost::asio::awaitable<void>(worker::Worker*)> use) {
    auto body = [&]() -> boost::asio::awaitable<void> {
      worker::Worker worker(co_await boost::asio::this_coro::executor, config);
      auto const opened = co_await worker.open();
      EXPECT_TRUE(opened);
      if (opened) co_await use(&worker);
      co_await worker.close();
    };
    async::run_test(body, std::chrono::seconds(110));
  }

  Installation installation_;
  std::optional<Hostd> hostd_;
};

}  // namespace test
