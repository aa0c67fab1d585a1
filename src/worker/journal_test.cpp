#include "worker/journal.hpp"

#include "async/beside.hpp"
#include "worker/testing/fakes.hpp"

#include <filesystem>

#include <gtest/gtest.h>

namespace worker {
namespace {

JournalEntry entry_of(std::string phase, char filler, std::size_t bytes) {
  JournalEntry entry;
  entry.sandbox = testing::Rig::request().sandbox;
  entry.epoch = 1;
  entry.phase = std::move(phase);
  entry.detail.assign(bytes, filler);
  return entry;
}

/// A policy is noted while its sandbox ends, for example: an entry that is a mixture of both would
/// be set aside as broken, and its machine ended as nobody's.
TEST(Journal, OfTwoWritersOfOneEntryBothSucceedAndOneIsThere) {
  testing::TempDir const dir;
  Journal const journal(dir.path() + "/journal");
  ASSERT_TRUE(journal.open());
  auto const one = entry_of("running", 'a', 60'000);
  auto two = one;
  two.phase = "ending";
  two.detail.assign(20'000, 'b');
  for (int round = 0; round < 60; ++round) {
    auto beside = async::beside([&] { return journal.write(one); });
    auto const second = journal.write(two);
    auto const first = beside.get();
    ASSERT_TRUE(first) << first.error().message() << first.error().detail();
    ASSERT_TRUE(second) << second.error().message() << second.error().detail();
    auto const loaded = journal.load();
    ASSERT_TRUE(loaded);
    ASSERT_TRUE(loaded->broken.empty()) << "in round " << round;
    ASSERT_EQ(loaded->entries.size(), 1U);
    auto const& there = loaded->entries.front();
    EXPECT_EQ(there.detail, there.phase == "running" ? one.detail : two.detail);
  }
}

TEST(Journal, WhatWasNotWrittenToItsEndLeavesNoFileAndTheEntryBefore) {
  testing::TempDir const dir;
  Journal const journal(dir.path() + "/journal");
  ASSERT_TRUE(journal.open());
  auto const entry = entry_of("running", 'a', 10);
  // A directory in its place: the last step fails.
  std::filesystem::create_directories(
      fmt::format("{}/journal/{}.json/x", dir.path(), entry.sandbox));
  EXPECT_FALSE(journal.write(entry));
  auto const files = std::filesystem::directory_iterator(dir.path() + "/journal");
  EXPECT_EQ(std::distance(begin(files), end(files)), 1);
}

}  // namespace
}  // namespace worker
