// The audit log's checkpoints on their way from a worker into the database.
#include "audit/checkpoint.hpp"
#include "controller/testing/controller_bench.hpp"

namespace controller {
namespace {

/// A log and its checkpoints, as the worker of the bench tells them.
struct Node {
  explicit Node(Bench& bench, std::string const& name)
      : bench(bench), directory(bench.config.data_dir + "/" + name) {
    fs::create_directories(directory);
    log = audit::Log::open(directory).value();
    checkpoints = audit::Checkpoints::open("node-1", directory + "/key", directory).value();
  }

  void write(std::string const& what) {
    EXPECT_TRUE(log->append("{\"what\":\"" + what + "\"}"));
    EXPECT_TRUE(checkpoints->note(*log, true));
  }

  void tell() const {
    bench.worker.checkpoints = [told = checkpoints](std::uint64_t after) {
      return told->tell(after).value();
    };
  }

  Bench& bench;
  std::string directory;
  std::unique_ptr<audit::Log> log;
  std::shared_ptr<audit::Checkpoints> checkpoints;
};

std::string latest(Bench& bench) {
  auto const rows = store::testing::query(
      bench.conninfo, "select coalesce(max(last_sequence), 0)::text from audit_checkpoints");
  return rows.at(0);
}

std::vector<std::string> complaints(Bench& bench) {
  return store::testing::query(
      bench.conninfo,
      "select data->>'problem' from events where type = 'audit.broken' and data->>'node' = "
      "'node-1'");
}

store::asio::awaitable<void> eventually(std::function<bool()> done) {
  auto const until = base::system_clock().in(20s);
  while (!done() && base::system_clock().steady_now() < until)
    co_await async::sleep_for(20ms);
  EXPECT_TRUE(done());
}

TEST(ControllerAudit, CheckpointsAreKeptAndALogThatWasWrittenAnewIsToldOfOnce) {
  with_bench([](Bench& bench) -> store::asio::awaitable<void> {
    Node node(bench, "log");
    node.write("a");
    node.write("b");
    node.tell();
    bench.start_controller("one");
    bench.start_controller("two");
    co_await eventually([&] { return latest(bench) == "2"; });
    node.write("c");
    co_await eventually([&] { return latest(bench) == "3"; });
    EXPECT_THAT(complaints(bench), ::testing::IsEmpty());
    // The same key, the same numbers, other lines.
    Node anew(bench, "anew");
    fs::copy_file(
        node.directory + "/key", anew.directory + "/key", fs::copy_options::overwrite_existing);
    anew.checkpoints =
        audit::Checkpoints::open("node-1", anew.directory + "/key", anew.directory).value();
    for (auto const* what : {"x", "y", "z", "and more"})
      anew.write(what);
    anew.tell();
    co_await eventually([&] { return !complaints(bench).empty(); });
    // Of record 3; or of 2, by the controller that had looked before the other one kept 3.
    EXPECT_THAT(
        complaints(bench),
        ::testing::ElementsAre(::testing::HasSubstr("is another one than at its checkpoint")));
    EXPECT_EQ(latest(bench), "3");
  });
}

TEST(ControllerAudit, AnotherKeyIsToldOfAndTheFirstOneStays) {
  with_bench([](Bench& bench) -> store::asio::awaitable<void> {
    Node node(bench, "log");
    node.write("a");
    node.tell();
    bench.start_controller("one");
    co_await eventually([&] { return latest(bench) == "1"; });
    auto const key = [&] {
      return store::testing::query(bench.conninfo, "select public_key from audit_nodes");
    };
    auto const first = key();
    Node other(bench, "other");
    other.write("a");
    other.write("b");
    other.tell();
    co_await eventually([&] { return !complaints(bench).empty(); });
    EXPECT_THAT(complaints(bench), ::testing::ElementsAre(::testing::HasSubstr("another key")));
    EXPECT_EQ(key(), first);
    EXPECT_EQ(latest(bench), "1");
  });
}

TEST(ControllerAudit, ABeginningThatSomebodyTookIsToldOfUntilAnAdministratorHasLooked) {
  with_bench([](Bench& bench) -> store::asio::awaitable<void> {
    Node node(bench, "log");
    node.log.reset();
    node.log = audit::Log::open(node.directory, {1'000, 100}).value();
    node.checkpoints->attend(*node.log);
    for (int i = 0; i < 30; ++i)
      node.write("a");
    node.tell();
    bench.start_controller("one");
    co_await eventually([&] { return latest(bench) == "30"; });
    fs::remove(node.directory + "/audit-00000001.jsonl");
    EXPECT_TRUE(node.log->append(R"({"what":"b"})"));
    EXPECT_FALSE(node.checkpoints->note(*node.log, true)) << "no such beginning is signed";
    co_await eventually([&] { return !complaints(bench).empty(); });
    EXPECT_THAT(
        complaints(bench),
        ::testing::ElementsAre(::testing::HasSubstr("retention took nothing from record 1 on")));
    EXPECT_EQ(latest(bench), "30");
    store::AuditCheckpoints kept(bench.store.database);
    auto const forgotten = co_await kept.forget("node-1", "somebody", soon());
    EXPECT_TRUE(forgotten && *forgotten);
    // With what is there as the beginning, and nothing to complain about any more.
    co_await eventually([&] { return latest(bench) == "31"; });
    node.write("c");
    co_await eventually([&] { return latest(bench) == "32"; });
    EXPECT_EQ(store::testing::query(bench.conninfo, "select problem from audit_nodes"),
              std::vector<std::string>{""});
    EXPECT_EQ(complaints(bench).size(), 1U);
  });
}

}  // namespace
}  // namespace controller
