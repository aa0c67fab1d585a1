#include "hostd/guard_drops.hpp"

#include <gtest/gtest.h>

namespace hostd {
namespace {

std::uint64_t of(GuardDrops const& drops, GuardRule rule) {
  return drops.at(static_cast<std::size_t>(rule));
}

TEST(GuardDrops, AreFoundRuleByRule) {
  auto const drops = drops_in(
      "table netdev guard {\n"
      "\tset dst_ok {\n\t\ttype ipv4_addr\n\t}\n\n"
      "\tchain budget_in {\n"
      "\t\tlimit rate over 8 mbytes/second burst 1 mbytes counter packets 7 bytes 9 drop\n\t}\n\n"
      "\tchain from_guest_arp {\n"
      "\t\tarp htype 1 limit rate 20/second burst 20 packets counter packets 5 bytes 210 accept\n"
      "\t\tcounter packets 3 bytes 126 drop\n\t}\n\n"
      "\tchain to_gateway {\n"
      "\t\ttcp flags & (syn | ack) == syn limit rate over 200/second burst 400 packets counter "
      "packets 11 bytes 660 drop\n"
      "\t\tcounter packets 1000 bytes 90000 accept\n\t}\n\n"
      "\tchain from_guest_ip {\n"
      "\t\tether daddr != 02:00:00:00:00:01 counter packets 1 bytes 60 drop\n"
      "\t\tip saddr != 192.0.2.2 counter packets 2 bytes 120 drop\n"
      "\t\tip hdrlength != 5 counter packets 4 bytes 10 drop\n"
      "\t\tip frag-off & 16383 != 0 counter packets 8 bytes 10 drop\n"
      "\t\tip daddr { 127.0.0.0/8 } ip protocol tcp counter packets 99 bytes 1 reject with tcp "
      "reset\n"
      "\t\tip daddr { 127.0.0.0/8 } counter packets 16 bytes 10 drop\n"
      "\t\tcounter packets 32 bytes 1 drop\n\t}\n\n"
      "\tchain from_guest {\n"
      "\t\ttype filter hook ingress device \"sbx0\" priority -450; policy drop;\n"
      "\t\tether saddr != 02:00:00:00:00:02 counter packets 64 bytes 1 drop\n"
      "\t\tcounter packets 128 bytes 1 drop\n\t}\n}\n");
  EXPECT_EQ(of(drops, GuardRule::network_budget), 7U);
  EXPECT_EQ(of(drops, GuardRule::arp), 3U);
  EXPECT_EQ(of(drops, GuardRule::connection_rate), 11U);
  EXPECT_EQ(of(drops, GuardRule::receiver), 1U);
  EXPECT_EQ(of(drops, GuardRule::source_address), 2U);
  EXPECT_EQ(of(drops, GuardRule::ip_header), 12U);
  EXPECT_EQ(of(drops, GuardRule::special_address), 16U);
  EXPECT_EQ(of(drops, GuardRule::nowhere_to_go), 32U);
  EXPECT_EQ(of(drops, GuardRule::sender), 64U);
  EXPECT_EQ(of(drops, GuardRule::protocol), 128U);
}

TEST(GuardDrops, OfWhatIsNoListingAreNone) {
  for (auto const* text : {"",
                           "\n",
                           "counter packets drop",
                           "counter packets x bytes 1 drop",
                           "counter packets 99999999999999999999999 bytes 1 drop"})
    EXPECT_EQ(drops_in(text), GuardDrops{}) << text;
}

}  // namespace
}  // namespace hostd
