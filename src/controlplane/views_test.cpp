#include "controlplane/views.hpp"

#include <gtest/gtest.h>

namespace controlplane {
namespace {

TEST(Views, ANodeTellsWhatItsControllerFoundUnclaimedAndNotWhatItsWorkerSays) {
  Nodes::Seen node;
  node.report.unclaimed = {"of the worker"};
  node.report.unclaimed_total = 1;
  EXPECT_FALSE(view_of(node).contains("unclaimed"));
  node.row.report.unclaimed = {"i1", "s2"};
  node.row.report.unclaimed_total = 7;
  auto const view = view_of(node);
  EXPECT_EQ(view.at("unclaimed"), (json::array{"i1", "s2"}));
  EXPECT_EQ(view.at("unclaimed_total"), 7);
}

}  // namespace
}  // namespace controlplane
