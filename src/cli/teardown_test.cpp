// Stopping an installation whose platform does not answer, and what a stop leaves on disk.
#include "cli/teardown.hpp"

#include "async/testing.hpp"
#include "cli/layout.hpp"
#include "cli/up.hpp"
#include "http/server.hpp"
#include "wire/worker.hpp"

#include <filesystem>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace cli {
namespace {

namespace fs = std::filesystem;

std::string id_of(char letter) {
  return "i" + std::string(20, letter);
}

struct Listing {
  std::vector<wire::WorkerSandbox> sandboxes;
};
BOOST_DESCRIBE_STRUCT(Listing, (), (sandboxes))

/// A worker whose machines do as they are told; one of them cannot be suspended.
class FakeWorker final : public http::Handler {
 public:
  asio::awaitable<void> handle(http::Request& request, http::ResponseWriter& response) override {
    auto const body = co_await request.body.read_all(1 << 16);
    std::string const path(request.head.path());
    asked.push_back(request.head.method + " " + request.head.target);
    http::Response answer{200, {}, "{}"};
    if (request.head.method == "GET") {
      Listing listing;
      for (auto const& [id, one] : machines)
        listing.sandboxes.push_back(one);
      answer.body = wire::encode_text(listing);
    } else if (request.head.method == "DELETE") {
      machines.erase(path.substr(sizeof "/sandboxes/" - 1));
    } else {
      auto const id = path.substr(sizeof "/sandboxes/" - 1, 21);
      if (id == stubborn)
        answer = {429, {}, "no room"};
      else
        machines[id].state = "suspended";
    }
    auto sent = co_await response.send(std::move(answer));
    static_cast<void>(sent);
  }

  void add(std::string id, std::string state) {
    auto& one = machines[id];
    one.sandbox = id;
    one.epoch = 3;
    one.state = std::move(state);
  }

  std::map<std::string, wire::WorkerSandbox> machines;
  std::string stubborn;
  std::vector<std::string> asked;
};

class Teardown : public ::testing::Test {
 public:
  Teardown() {
    std::string name = "/tmp/teardown_test_XXXXXX";
    config.data_dir = ::mkdtemp(name.data());
    config.run_dir = config.data_dir + "/run";
    fs::create_directories(fs::path(config.worker_socket()).parent_path());
    fs::create_directories(config.run_dir);
  }

  ~Teardown() override { fs::remove_all(config.data_dir); }

  Teardown(Teardown const&) = delete;
  Teardown& operator=(Teardown const&) = delete;

  int stop(FakeWorker& worker) {
    int code = -1;
    async::run_test([&]() -> asio::awaitable<void> {
      auto executor = co_await asio::this_coro::executor;
      http::Server server(executor, worker);
      server.listen(*net::listen_unix(executor, config.worker_socket()));
      code = co_await end_all(config);
      co_await server.close(std::chrono::milliseconds(100));
    });
    return code;
  }

  void note(std::string const& id, std::string const& text) const {
    auto const journal = config.data_dir + "/worker/sandboxes";
    fs::create_directories(journal);
    fs::create_directories(config.pool() + "/sandboxes/" + id);
    ASSERT_TRUE(write_file(journal + "/" + id + ".json", text, 0600));
    ASSERT_TRUE(write_file(config.pool() + "/sandboxes/" + id + "/disk.img", "x", 0600));
  }

  wire::Config config;
};

TEST_F(Teardown, WithoutThePlatformTheWorkerSuspendsWhatRunsAndThatIsTold) {
  FakeWorker worker;
  worker.add(id_of('a'), "running");
  worker.add(id_of('b'), "paused");
  worker.add(id_of('c'), "suspended");
  worker.add(id_of('d'), "running");
  worker.stubborn = id_of('d');
  EXPECT_EQ(stop(worker), 0);
  EXPECT_EQ(worker.machines.size(), 3u);
  for (auto const& [id, one] : worker.machines)
    EXPECT_EQ(one.state, "suspended") << id;
  EXPECT_THAT(
      worker.asked,
      ::testing::Contains("DELETE /sandboxes/" + id_of('d') + "?epoch=3&cause=host_stopped"));
  auto const report = read_file(suspends_report_path(config));
  ASSERT_TRUE(report) << report.error().message();
  EXPECT_THAT(*report, ::testing::HasSubstr(R"("suspended":2)"));
  EXPECT_THAT(*report, ::testing::HasSubstr(id_of('d')));
  EXPECT_THAT(*report, ::testing::HasSubstr("no room"));
}

TEST_F(Teardown, WhereThatWasAskedForAllAreEnded) {
  FakeWorker worker;
  worker.add(id_of('a'), "running");
  worker.add(id_of('c'), "suspended");
  ASSERT_TRUE(write_file(no_suspend_path(config), "", 0644));
  EXPECT_EQ(stop(worker), 0);
  EXPECT_EQ(worker.machines.size(), 1u);
  EXPECT_TRUE(worker.machines.contains(id_of('c'))) << "what sleeps is kept";
  EXPECT_FALSE(fs::exists(no_suspend_path(config))) << "asked for this stop only";
}

TEST_F(Teardown, MachinesThatNobodyClaimedLeaveNothing) {
  note(id_of('w'),
       R"({"phase":"warm","epoch":1,"internal":true,"sandbox":")" + id_of('w') + R"("})");
  note(id_of('s'), R"({"phase":"suspended","epoch":2,"sandbox":")" + id_of('s') + R"("})");
  note(id_of('x'), "{ cut off");
  note("escape", R"({"phase":"warm","epoch":1,"internal":true,"sandbox":"../../run"})");
  EXPECT_EQ(remove_unclaimed(config), 1u);
  EXPECT_FALSE(fs::exists(config.pool() + "/sandboxes/" + id_of('w')));
  EXPECT_FALSE(fs::exists(config.data_dir + "/worker/sandboxes/" + id_of('w') + ".json"));
  for (auto const& id : {id_of('s'), id_of('x'), std::string("escape")}) {
    EXPECT_TRUE(fs::exists(config.pool() + "/sandboxes/" + id + "/disk.img")) << id;
    EXPECT_TRUE(fs::exists(config.data_dir + "/worker/sandboxes/" + id + ".json")) << id;
  }
  EXPECT_TRUE(fs::exists(config.run_dir));
  EXPECT_EQ(remove_unclaimed(config), 0u);
}

}  // namespace
}  // namespace cli
