// Every part on which the boundary stands is broken while a guest keeps all of its ways out busy.
// What must close closes: attempts go on, and not one byte of them comes to a server. What need not
// goes on. When the part is mended everything carries again.

#include "async/testing.hpp"
#include "integration/fail_closed_rig.hpp"

namespace test {
namespace {

struct Row {
  char const* name;
  awaitable<void> (FailClosedRig::*broken)();
  awaitable<void> (FailClosedRig::*mended)();
  std::vector<Way> closed;
  bool slots = true;  // are made while it is broken
};

void PrintTo(Row const& row, std::ostream* out) {
  *out << row.name;
}

using Rig = FailClosedRig;
std::vector<Way> const all{every_way.begin(), every_way.end()};
std::vector<Row> const rows{
    {"GatewayKilled", &Rig::kill_gateway, &Rig::start_gateway, all},
    {"WorkerGone", &Rig::leave_gateway, &Rig::attach_gateway, all},
    {"WorkerReplaced", &Rig::replace_worker, &Rig::nothing, {}},
    {"HostdGone", &Rig::kill_hostd, &Rig::start_hostd, {}, false},
    {"BrokerGone", &Rig::end_broker, &Rig::start_broker, {Way::bound}},
    {"BrokerWithAnotherKey", &Rig::start_broker_with_another_key, &Rig::start_broker, {Way::bound}},
    {"LeaseOver", &Rig::end_leases_by_time, &Rig::lease_again, {Way::bound}},
    {"LeaseOverAndClockSetBack",
     &Rig::end_leases_though_the_clock_is_set_back,
     &Rig::lease_again,
     {Way::bound}},
    {"ClockSetForward", &Rig::set_the_clock_forward, &Rig::nothing, {}},
    {"NameServerGone", &Rig::take_names_away, &Rig::mend_names, {Way::fresh}},
    {"NameServerFails", &Rig::fail_names, &Rig::mend_names, {Way::fresh}},
    {"NameServerLeadsInside", &Rig::lead_names_inside, &Rig::mend_names, {Way::fresh}},
};

class FailClosed : public testing::TestWithParam<Row> {};

awaitable<void> break_and_mend(Row row) {
  FailClosedRig rig(co_await asio::this_coro::executor);
  co_await rig.begin();
  for (auto const way : every_way)
    EXPECT_TRUE(co_await rig.carries(way)) << "the control before: " << name_of(way);
  co_await (rig.*row.broken)();
  for (auto const way : every_way) {
    if (std::ranges::find(row.closed, way) != row.closed.end()) {
      EXPECT_TRUE(co_await rig.is_closed(way)) << name_of(way);
    } else {
      EXPECT_TRUE(co_await rig.carries(way)) << "goes on: " << name_of(way);
    }
  }
  EXPECT_EQ(rig.makes_slots(), row.slots);
  co_await (rig.*row.mended)();
  for (auto const way : every_way)
    EXPECT_TRUE(co_await rig.carries(way)) << "the control after: " << name_of(way);
  EXPECT_TRUE(rig.makes_slots());
  EXPECT_GT(rig.strays_tried(), 2U);
  EXPECT_EQ(rig.strayed(), 0U) << "where no rule leads nothing came at any time";
  co_await rig.end();
}

TEST_P(FailClosed, WhatBreaksUnderLoadLetsNotOneByteOut) {
  async::run_test([] { return break_and_mend(GetParam()); }, std::chrono::seconds(110));
}

INSTANTIATE_TEST_SUITE_P(Parts, FailClosed, testing::ValuesIn(rows), [](auto const& row) {
  return std::string(row.param.name);
});

}  // namespace
}  // namespace test
