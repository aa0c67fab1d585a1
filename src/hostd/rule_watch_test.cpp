#include "hostd/rule_watch.hpp"

#include <gtest/gtest.h>

namespace hostd {
namespace {

std::string listing(std::string const& in, std::string const& out) {
  return "table netdev guard {\n\tchain budget_in {\n" + in +
         "\t}\n\n\tchain from_guest {\n\t\tcounter drop\n\t}\n}\n"
         "table inet steer {\n\tchain budget_out {\n" +
         out + "\t}\n}\n";
}

constexpr char budget[] = "\t\tlimit rate over 8 kbytes/second burst 64 kbytes counter drop\n";

TEST(WithoutBudget, TakesOutABudgetAndNothingElse) {
  auto const plain = listing("", "");
  auto const none = without_budget(plain);
  ASSERT_TRUE(none);
  EXPECT_EQ(none->rules, plain);
  EXPECT_EQ(none->budget, "");
  auto const limited = without_budget(listing(budget, budget));
  ASSERT_TRUE(limited);
  EXPECT_EQ(limited->rules, plain);
  EXPECT_EQ(limited->budget, budget);
}

TEST(WithoutBudget, KnowsWhatIsNoBudget) {
  for (auto const* other : {"\t\tcounter accept\n",
                            "\t\tlimit rate over 8 kbytes/second burst 64 kbytes counter accept\n",
                            "\t\tlimit rate 8 kbytes/second counter drop\n"})
    EXPECT_FALSE(without_budget(listing(other, other))) << other;
  auto const twice = std::string(budget) + budget;
  EXPECT_FALSE(without_budget(listing(twice, twice)));
  EXPECT_FALSE(without_budget(listing(budget, ""))) << "one direction alone";
  EXPECT_FALSE(without_budget("table netdev guard {\n}\n"));
  EXPECT_FALSE(without_budget(""));
}

}  // namespace
}  // namespace hostd
