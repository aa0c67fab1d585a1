#include "worker/guard_drops.hpp"

#include "base/metric_names.hpp"

#include <gtest/gtest.h>

namespace worker {
namespace {

using hostd::GuardRule;

double counted(base::Metrics const& all, GuardRule rule) {
  double sum = 0;
  for (auto const& sample : all.all())
    if (sample.name == base::metric::guard_drops.name && sample.labels.front() == name_of(rule))
      sum += sample.value;
  return sum;
}

hostd::GuardDrops drops_of(GuardRule rule, std::uint64_t count) {
  hostd::GuardDrops out{};
  out.at(static_cast<std::size_t>(rule)) = count;
  return out;
}

TEST(GuardCounts, CountWhatWasAddedSinceTheLastLook) {
  base::Metrics all;
  GuardCounts counts(all);
  counts.note("a", drops_of(GuardRule::arp, 3));
  counts.note("b", drops_of(GuardRule::arp, 4));
  counts.note("a", drops_of(GuardRule::arp, 5));
  EXPECT_EQ(counted(all, GuardRule::arp), 9);
  counts.note("a", drops_of(GuardRule::arp, 1));
  EXPECT_EQ(counted(all, GuardRule::arp), 10) << "its rules were loaded anew";
  counts.forget("a");
  counts.note("a", drops_of(GuardRule::arp, 1));
  EXPECT_EQ(counted(all, GuardRule::arp), 11) << "another life, in another slot";
  EXPECT_EQ(counted(all, GuardRule::sender), 0);
}

TEST(GuardCounts, WhatWasThereBeforeTheWorkerIsNotCountedTwice) {
  base::Metrics all;
  GuardCounts counts(all);
  counts.found("a");
  counts.note("a", drops_of(GuardRule::sender, 100));
  EXPECT_EQ(counted(all, GuardRule::sender), 0);
  counts.note("a", drops_of(GuardRule::sender, 101));
  EXPECT_EQ(counted(all, GuardRule::sender), 1);
}

TEST(GuardCounts, LookAtOneAfterTheOther) {
  std::map<std::string, int> const all{{"a", 0}, {"c", 0}};
  EXPECT_EQ(GuardCounts::next_after("", all), "a");
  EXPECT_EQ(GuardCounts::next_after("a", all), "c");
  EXPECT_EQ(GuardCounts::next_after("b", all), "c");
  EXPECT_EQ(GuardCounts::next_after("c", all), "a");
  EXPECT_EQ(GuardCounts::next_after("c", std::map<std::string, int>()), "");
}

}  // namespace
}  // namespace worker
