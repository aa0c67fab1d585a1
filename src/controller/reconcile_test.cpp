#include "controller/reconcile.hpp"

#include <gtest/gtest.h>

namespace controller {
namespace {

using namespace std::chrono_literals;
using domain::SandboxState;

constexpr auto age = 4s;

wire::WorkerSandbox machine(std::string sandbox,
                            std::uint64_t epoch = 1,
                            std::string state = "running") {
  wire::WorkerSandbox one;
  one.sandbox = std::move(sandbox);
  one.epoch = epoch;
  one.state = std::move(state);
  return one;
}

store::SandboxRow row(std::string sandbox,
                      SandboxState state = SandboxState::running,
                      std::uint64_t epoch = 1,
                      std::string node = "n") {
  store::SandboxRow one;
  one.public_id = std::move(sandbox);
  one.state = state;
  one.epoch = epoch;
  one.node = std::move(node);
  return one;
}

/// Looks at the same picture every second for that long and returns the last plan.
Plan watched(Reconciler& reconciler,
             Look const& look,
             base::ManualClock& clock,
             std::chrono::seconds duration) {
  Plan plan = reconciler.look(look, clock.steady_now());
  for (auto passed = 1s; passed <= duration; passed += 1s) {
    clock.advance(1s);
    plan = reconciler.look(look, clock.steady_now());
  }
  return plan;
}

struct Reconcile : testing::Test {
  Reconciler reconciler{"n", age};
  base::ManualClock clock;
};

TEST_F(Reconcile, AgreementNeedsNothing) {
  Look const look{{machine("a")}, {row("a")}};
  auto const plan = watched(reconciler, look, clock, 60s);
  EXPECT_TRUE(plan.kill.empty() && plan.vanished.empty() && plan.finish.empty());
}

TEST_F(Reconcile, AMachineWithoutARowIsKilledOnlyAfterTwoLooks) {
  Look const look{{machine("a", 3)}, {}};
  EXPECT_TRUE(watched(reconciler, look, clock, 3s).kill.empty());
  clock.advance(1s);
  auto const plan = reconciler.look(look, clock.steady_now());
  ASSERT_EQ(plan.kill.size(), 1U);
  EXPECT_EQ(plan.kill[0], (Plan::Kill{"a", 3, "it has no row"}));
}

TEST_F(Reconcile, WhatIsAtRestAndUnknownToTheDatabaseIsToldAndNeverKilled) {
  for (auto const* state : {"suspended", "suspending", "restoring"}) {
    Look const look{.machines = {machine("a", 3, state)}};
    EXPECT_TRUE(watched(reconciler, look, clock, 3s).unclaimed.empty())
        << "one look proves nothing";
    auto const plan = watched(reconciler, look, clock, 600s);
    EXPECT_TRUE(plan.kill.empty()) << state;
    EXPECT_EQ(plan.unclaimed, std::vector<std::string>{"a"}) << state;
    reconciler.forget();
  }
}

TEST_F(Reconcile, WhatIsAtRestGoesWhenTheDatabaseSaysThatItEndedOrAnAdministratorDoes) {
  Look const ended{.machines = {machine("a", 3, "suspended")}, .ended = {"a"}};
  auto plan = watched(reconciler, ended, clock, 4s);
  ASSERT_EQ(plan.kill.size(), 1U);
  EXPECT_EQ(plan.kill[0].sandbox, "a");
  EXPECT_TRUE(plan.unclaimed.empty());
  Look const released{.machines = {machine("b", 3, "suspended")}, .released = true};
  plan = watched(reconciler, released, clock, 4s);
  ASSERT_EQ(plan.kill.size(), 1U);
  EXPECT_EQ(plan.kill[0].sandbox, "b");
}

TEST_F(Reconcile, OneLookKillsNothingHoweverLateItComes) {
  Look const look{{machine("a")}, {}};
  clock.advance(1h);
  EXPECT_TRUE(reconciler.look(look, clock.steady_now()).kill.empty());
}

TEST_F(Reconcile, AnInterruptedSuspicionStartsAnew) {
  Look const without{{machine("a")}, {}};
  Look const with{{machine("a")}, {row("a")}};
  watched(reconciler, without, clock, 3s);
  clock.advance(1s);
  EXPECT_TRUE(reconciler.look(with, clock.steady_now()).kill.empty());
  clock.advance(1s);
  EXPECT_TRUE(watched(reconciler, without, clock, 3s).kill.empty());
}

TEST_F(Reconcile, WithoutTheDatabaseThereIsNoLookAndWhatWasSeenIsForgotten) {
  Look const look{{machine("a")}, {}};
  watched(reconciler, look, clock, 3s);
  reconciler.forget();
  clock.advance(1h);
  EXPECT_TRUE(reconciler.look(look, clock.steady_now()).kill.empty());
}

TEST_F(Reconcile, AnOlderEpochIsKilledWithTheNewOne) {
  // The row was moved to another node; the machine here is a former life.
  Look const look{{machine("a", 1)}, {row("a", SandboxState::running, 2, "other")}};
  auto const plan = watched(reconciler, look, clock, 4s);
  ASSERT_EQ(plan.kill.size(), 1U);
  EXPECT_EQ(plan.kill[0], (Plan::Kill{"a", 2, "its epoch is over"}));
  EXPECT_TRUE(plan.vanished.empty()) << "the row belongs to the other node";
}

TEST_F(Reconcile, ANewerEpochThanTheRowsIsLeftAlone) {
  Look const look{{machine("a", 2)}, {row("a", SandboxState::creating, 1)}};
  auto const plan = watched(reconciler, look, clock, 60s);
  EXPECT_TRUE(plan.kill.empty() && plan.vanished.empty());
}

TEST_F(Reconcile, AMachineThatIsEndingIsLeftToItsWorker) {
  Look const look{{machine("a", 1, "ending")}, {}};
  EXPECT_TRUE(watched(reconciler, look, clock, 60s).kill.empty());
}

TEST_F(Reconcile, ARowWhoseMachineIsGoneVanishes) {
  for (auto const state : {SandboxState::running, SandboxState::paused, SandboxState::pausing}) {
    Reconciler fresh("n", age);
    Look const look{{}, {row("a", state)}};
    EXPECT_TRUE(watched(fresh, look, clock, 3s).vanished.empty());
    clock.advance(1s);
    EXPECT_EQ(fresh.look(look, clock.steady_now()).vanished.size(), 1U) << domain::name_of(state);
  }
}

TEST_F(Reconcile, RowsWithoutAMachineByRightAreLeftAlone) {
  for (auto const state : {SandboxState::creating, SandboxState::restoring}) {
    Reconciler fresh("n", age);
    Look const look{{}, {row("a", state)}};
    auto const plan = watched(fresh, look, clock, 60s);
    EXPECT_TRUE(plan.vanished.empty() && plan.finish.empty()) << domain::name_of(state);
  }
}

TEST_F(Reconcile, ASuspendedOneIsLeftAloneAndLostOnlyAfterLong) {
  Look const there{{machine("a", 2, "suspended")}, {row("a", SandboxState::suspended, 3)}};
  auto plan = watched(reconciler, there, clock, 60s);
  EXPECT_TRUE(plan.kill.empty() && plan.vanished.empty() && plan.align.empty());
  Look const coming{{machine("a", 2, "suspended")}, {row("a", SandboxState::restoring, 3)}};
  plan = watched(reconciler, coming, clock, 60s);
  EXPECT_TRUE(plan.kill.empty() && plan.vanished.empty() && plan.align.empty());
  Look const lost{{}, {row("a", SandboxState::suspended, 3)}};
  EXPECT_TRUE(watched(reconciler, lost, clock, 19s).vanished.empty());
  EXPECT_EQ(watched(reconciler, lost, clock, 2s).vanished.size(), 1U);
  Look const orphan{{machine("b", 2, "suspended")}, {}};
  EXPECT_EQ(watched(reconciler, orphan, clock, 5s).unclaimed.size(), 1U);
}

TEST_F(Reconcile, WhatDisagreesIsAligned) {
  auto const how = [&](SandboxState state, std::string machine_state) -> std::string {
    Reconciler fresh("n", age);
    Look const look{{machine("a", 1, std::move(machine_state))}, {row("a", state)}};
    EXPECT_TRUE(watched(fresh, look, clock, 3s).align.empty()) << "not on one look";
    auto const plan = watched(fresh, look, clock, 2s);
    return plan.align.empty() ? std::string() : plan.align.front().how;
  };
  EXPECT_EQ(how(SandboxState::running, "suspended"), "suspended");
  EXPECT_EQ(how(SandboxState::paused, "suspended"), "suspended");
  EXPECT_EQ(how(SandboxState::running, "paused"), "resume");
  EXPECT_EQ(how(SandboxState::paused, "running"), "pause");
  EXPECT_EQ(how(SandboxState::suspended, "running"), "suspend");
  EXPECT_EQ(how(SandboxState::running, "running"), "");
  EXPECT_EQ(how(SandboxState::suspending, "suspended"), "") << "an operation is at work";
}

TEST_F(Reconcile, ARowOfAnotherNodeIsNotJudgedHere) {
  Look const look{{}, {row("a", SandboxState::running, 1, "other")}};
  EXPECT_TRUE(watched(reconciler, look, clock, 60s).vanished.empty());
}

TEST_F(Reconcile, ADeleteThatHangsIsFinishedLater) {
  Look const look{{machine("a")}, {row("a", SandboxState::deleting)}};
  EXPECT_TRUE(watched(reconciler, look, clock, 19s).finish.empty());
  clock.advance(1s);
  auto const plan = reconciler.look(look, clock.steady_now());
  EXPECT_EQ(plan.finish.size(), 1U);
  EXPECT_TRUE(plan.kill.empty()) << "the delete itself ends the machine";
}

TEST_F(Reconcile, ANewLifeIsANewSuspicion) {
  watched(reconciler, {{}, {row("a", SandboxState::running, 1)}}, clock, 3s);
  clock.advance(1s);
  EXPECT_TRUE(reconciler.look({{}, {row("a", SandboxState::running, 2)}}, clock.steady_now())
                  .vanished.empty());
}

}  // namespace
}  // namespace controller
