#include "controller/ends.hpp"

#include "controller/samples.hpp"
#include "controller/template_registry.hpp"

#include <gtest/gtest.h>

namespace controller {
namespace {

using domain::EndReason;
using domain::SandboxEvent;
using domain::SandboxState;

store::SandboxRow row(SandboxState state, std::uint64_t epoch = 2) {
  store::SandboxRow one;
  one.id = "row";
  one.state = state;
  one.epoch = epoch;
  return one;
}

wire::EndedSandbox ended(std::string cause, std::uint64_t epoch = 2) {
  wire::EndedSandbox one;
  one.sandbox = "iabcdefghij0123456789";
  one.epoch = epoch;
  one.cause = std::move(cause);
  one.detail = "because";
  one.console_tail = "last line";
  return one;
}

TEST(EndOfAMachine, CausesBecomeReasons) {
  auto const end = end_for(row(SandboxState::running), ended("guest_panic")).value();
  EXPECT_EQ(end.event, SandboxEvent::machine_failed);
  EXPECT_EQ(end.reason, EndReason::guest_panic);
  EXPECT_EQ(end.epoch, 2U);
  EXPECT_EQ(end.detail, "because");
  EXPECT_EQ(end.console_tail, "last line");
  EXPECT_EQ(end_for(row(SandboxState::running), ended("guest_shutdown")).value().event,
            SandboxEvent::machine_ended);
  EXPECT_EQ(end_for(row(SandboxState::paused), ended("vmm_out_of_memory")).value().reason,
            EndReason::out_of_memory);
}

TEST(EndOfAMachine, AnotherLifeIsNotConcerned) {
  EXPECT_FALSE(end_for(row(SandboxState::running), ended("guest_panic", 1)));
  EXPECT_FALSE(end_for(row(SandboxState::running), ended("guest_panic", 3)));
  EXPECT_FALSE(end_for(row(SandboxState::deleted), ended("guest_panic")));
}

TEST(EndOfAMachine, WhileDeletingItIsTheRelease) {
  for (auto const* cause : {"deleted", "guest_shutdown", "vmm_killed"}) {
    EXPECT_EQ(end_for(row(SandboxState::deleting), ended(cause)).value().event,
              SandboxEvent::released);
  }
}

TEST(EndOfAMachine, AFailedStartIsForItsCreatorWhoMayTryElsewhere) {
  EXPECT_FALSE(end_for(row(SandboxState::creating), ended("start_failed")));
  EXPECT_FALSE(end_for(row(SandboxState::creating), ended("deleted")));
  // Started, and gone before anybody wrote that it runs.
  EXPECT_EQ(end_for(row(SandboxState::creating), ended("guest_shutdown")).value().event,
            SandboxEvent::machine_ended);
}

TEST(EndOfAMachine, ARemovalNobodyAskedForIsSaidSo) {
  auto const end = end_for(row(SandboxState::running), ended("deleted")).value();
  EXPECT_EQ(end.reason, EndReason::unknown);
  EXPECT_EQ(end.event, SandboxEvent::machine_failed);
  EXPECT_NE(end.detail.find("without being asked"), std::string::npos);
}

TEST(EndOfAMachine, AConsoleIsMadePrintableAndBounded) {
  auto one = ended("guest_panic");
  one.console_tail = std::string(20'000, 'x') + std::string("\0\x1b[31m\xff\n", 8);
  auto const end = end_for(row(SandboxState::running), one).value();
  EXPECT_EQ(end.console_tail.size(), 16U * 1024);
  EXPECT_TRUE(end.console_tail.ends_with("x??[31m?\n"));
}

TEST(SampleOfAGuest, NumbersAreTakenAndLiesAreNot) {
  auto const now = base::system_clock().wall_now();
  auto const parse = [&](std::string_view text) {
    return sample_of("i", wire::parse_json(text).value(), now);
  };
  auto const good = parse(
      R"({"cpu_count":2,"cpu_used_pct":12.5,"mem_used":10,"mem_total":20,"mem_cache":3,"disk_used":4,"disk_total":5})");
  ASSERT_TRUE(good);
  EXPECT_EQ(good->cpu_count, 2U);
  EXPECT_EQ(good->cpu_used_pct, 12.5);
  EXPECT_EQ(good->memory_cache, 3U);
  EXPECT_EQ(good->at, now);
  for (
      auto const* text : {
          "[]",
          "{}",
          "null",
          R"("x")",
          R"({"cpu_count":-1,"cpu_used_pct":1,"mem_used":1,"mem_total":1,"disk_used":1,"disk_total":1})",
          R"({"cpu_count":1,"cpu_used_pct":1e300,"mem_used":1,"mem_total":1,"disk_used":1,"disk_total":1})",
          R"({"cpu_count":1,"cpu_used_pct":1,"mem_used":"1","mem_total":1,"disk_used":1,"disk_total":1})",
          R"({"cpu_count":1,"cpu_used_pct":1,"mem_used":1e18,"mem_total":1,"disk_used":1,"disk_total":1})",
      }) {
    EXPECT_FALSE(parse(text)) << text;
  }
}

constexpr auto* build = "0190a3c4-9b1d-5e2f-8a3b-4c5d6e7f8091";

std::string manifest(std::string const& more = "", std::string const& name = "base") {
  return R"({"name":")" + name + R"(","build":")" + build +
         R"(","created_at":"2030-01-01T00:00:00Z","content_sha256":"x")" + more + "}";
}

TEST(ManifestOfABuild, IsReadWithDefaultsAndKeptWhole) {
  auto const read = parse_manifest(build, manifest(R"(,"vcpus":2,"default_workdir":"/home/user")"));
  ASSERT_TRUE(read) << read.error().message();
  EXPECT_EQ(read->name, "base");
  EXPECT_EQ(read->vcpus, 2U);
  EXPECT_EQ(read->memory_mib, 512U);
  EXPECT_EQ(read->default_workdir, "/home/user");
  EXPECT_EQ(read->whole.at("content_sha256"), "x");
}

TEST(ManifestOfABuild, WhatIsNoManifestOfThatFolderIsRefused) {
  EXPECT_FALSE(parse_manifest("other", manifest()));
  EXPECT_FALSE(parse_manifest(build, manifest("", "Base")));
  EXPECT_FALSE(parse_manifest(build, manifest("", "a/b")));
  EXPECT_FALSE(parse_manifest(build, manifest(R"(,"vcpus":0)")));
  EXPECT_FALSE(parse_manifest(build, manifest(R"(,"memory_mib":1)")));
  EXPECT_FALSE(parse_manifest(build, manifest(R"(,"disk_mib":"4096")")));
  EXPECT_FALSE(parse_manifest(build, "{}"));
  EXPECT_FALSE(parse_manifest(build, ""));
  EXPECT_FALSE(parse_manifest(build, "\xff"));
}

}  // namespace
}  // namespace controller
