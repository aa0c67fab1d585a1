// Each step of create and delete fails once: the caller gets an error or the operation goes on, and
// nothing is left behind that a controller would not find.
#include "controlplane/testing.hpp"

#include <cstdlib>
#include <fstream>

namespace controlplane {
namespace {

using namespace std::chrono_literals;
using namespace testing;
using ::testing::HasSubstr;

std::string const& fault_file() {
  static std::string const path = fmt::format("/tmp/space-faults-{}", ::getpid());
  return path;
}

// Read once per process, before any test; without the file no point acts.
int const armed =
    ::setenv("SPACE_FAULT_FILE", fault_file().c_str(), 1);  // NOLINT(concurrency-mt-unsafe)

class Faults : public ::testing::Test {
 protected:
  void arm(std::string const& line) { std::ofstream(fault_file()) << line << "\n"; }

  bool acted() { return fs::file_size(fault_file()) == 0; }

  void TearDown() override { fs::remove(fault_file()); }
};

std::string column(Bench& bench, std::string const& sql) {
  auto const rows = store::testing::query(bench.database.conninfo, sql);
  return rows.empty() ? "none" : rows.front();
}

TEST_F(Faults, BeforeTheCommitOfACreateNothingHappens) {
  ASSERT_EQ(armed, 0);
  with_api([&](Bench& bench) -> asio::awaitable<void> {
    for (auto const* point : {"api.create.before_commit", "store.create.before_commit"}) {
      arm(std::string(point) + " fail");
      auto const answer = co_await bench.ask("POST", "/v1/sandboxes?wait=20");
      EXPECT_EQ(answer.status, 503) << point;
      EXPECT_EQ(answer.headers.get("retry-after"), "1");
      EXPECT_TRUE(acted()) << point;
    }
    EXPECT_EQ(column(bench, "select count(*) from sandboxes"), "0");
    EXPECT_EQ(column(bench, "select sandboxes from project_usage"), "0");
    EXPECT_TRUE(bench.worker.starts.empty());
  });
}

TEST_F(Faults, AWorkerThatIsNotAskedOrNotHeardLeavesNothing) {
  with_api([&](Bench& bench) -> asio::awaitable<void> {
    for (auto const* point : {"api.create.before_worker", "api.create.after_worker"}) {
      arm(std::string(point) + " fail");
      auto const answer = co_await bench.ask("POST", "/v1/sandboxes?wait=20");
      EXPECT_EQ(answer.status, 503) << point << answer.text;
      EXPECT_TRUE(acted()) << point;
      EXPECT_TRUE(bench.worker.machines.empty()) << point;
      EXPECT_EQ(column(bench, "select count(*) from sandboxes"), "0");
      EXPECT_EQ(column(bench, "select sandboxes from project_usage"), "0");
    }
    EXPECT_EQ(column(bench,
                     "select count(*) from ended_sandboxes where state = 'failed' and end_reason = "
                     "'start_failed'"),
              "2");
  });
}

TEST_F(Faults, AnAnswerOfTheDatabaseThatIsLostIsAskedForAgain) {
  with_api([&](Bench& bench) -> asio::awaitable<void> {
    arm("sandbox.started.before_commit fail");
    auto const answer = co_await bench.ask("POST", "/v1/sandboxes?wait=20");
    EXPECT_EQ(answer.status, 201) << answer.text;
    EXPECT_TRUE(acted());
  });
}

TEST_F(Faults, ADeleteThatStopsHalfWayIsHandedOver) {
  with_api([&](Bench& bench) -> asio::awaitable<void> {
    for (auto const* point : {"api.delete.before_worker",
                              "api.delete.after_worker",
                              "sandbox.released.before_commit"}) {
      auto const id = co_await bench.sandbox();
      arm(std::string(point) + " fail");
      auto const answer = co_await bench.ask("DELETE", "/v1/sandboxes/" + id + "?wait=0.5");
      EXPECT_EQ(answer.status, 202) << point << answer.text;
      EXPECT_TRUE(acted()) << point;
      auto const row = co_await bench.ask("GET", "/v1/sandboxes/" + id);
      EXPECT_EQ(row.str("state"), "deleting");
      // Its lease is over at once, so that a controller takes it.
      auto stale =
          co_await bench.api->store().operations.claim_stale("controller", 30s, 10, soon());
      EXPECT_TRUE(stale && stale->size() == 1) << point;
    }
    arm("api.delete.before_commit fail");
    auto const id = co_await bench.sandbox();
    auto const refused = co_await bench.ask("DELETE", "/v1/sandboxes/" + id);
    EXPECT_EQ(refused.status, 503);
    auto const again = co_await bench.ask("DELETE", "/v1/sandboxes/" + id + "?wait=20");
    EXPECT_EQ(again.status, 200) << again.text;
  });
}

TEST_F(Faults, AFailedStartThatCannotBeWrittenIsHandedOver) {
  with_api([&](Bench& bench) -> asio::awaitable<void> {
    bench.worker.start_refusal = base::Error(base::Code::internal, "the disk is broken");
    arm("api.create.before_failed fail");
    auto const answer = co_await bench.ask("POST", "/v1/sandboxes?wait=0.5");
    EXPECT_EQ(answer.status, 202) << answer.text;
    EXPECT_TRUE(acted());
    auto stale = co_await bench.api->store().operations.claim_stale("controller", 30s, 10, soon());
    EXPECT_TRUE(stale && stale->size() == 1);
  });
}

TEST_F(Faults, AStatementThatFailsIsAnErrorWithABody) {
  with_api([&](Bench& bench) -> asio::awaitable<void> {
    // Background loops run statements too: whoever meets the fault has to survive it.
    for (int i = 0; i < 5; ++i) {
      arm("store.statement.before fail\nstore.statement.after fail");
      auto const answer = co_await bench.ask("GET", "/v1/sandboxes");
      EXPECT_TRUE(answer.status == 200 || answer.status == 503) << answer.text;
    }
    fs::remove(fault_file());  // the last two may not have acted yet
    auto const after = co_await bench.ask("GET", "/v1/sandboxes");
    EXPECT_EQ(after.status, 200);
  });
}

}  // namespace
}  // namespace controlplane
