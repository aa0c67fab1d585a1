#include "gateway/dns.hpp"

#include <gtest/gtest.h>

namespace gateway {
namespace {

std::string query(std::string_view name,
                  char type = 1,
                  std::string_view flags = std::string_view("\x01\x00", 2)) {
  std::string out = "\x12\x34" + std::string(flags) + std::string("\0\1\0\0\0\0\0\0", 8);
  while (!name.empty()) {
    auto const label = name.substr(0, name.find('.'));
    out += static_cast<char>(label.size());
    out += label;
    name.remove_prefix(std::min(name.size(), label.size() + 1));
  }
  return out + std::string("\0\0", 2) + type + std::string("\0\1", 2);
}

bool allows(domain::HostName const& name) {
  return name.str() == "allowed.example" || name.is_below("wild.example");
}

DnsAnswer ask(SyntheticNames& names, std::string_view message) {
  return answer_query(message, names, allows);
}

int rcode(DnsAnswer const& answer) {
  return answer.message.size() < 4 ? -1 : answer.message[3] & 0x0f;
}

TEST(Dns, AnAllowedNameGetsItsOwnAddress) {
  SyntheticNames names(10);
  auto const answer = ask(names, query("aLLoWeD.eXaMPle"));
  EXPECT_EQ(answer.verdict, DnsVerdict::answered);
  EXPECT_EQ(answer.message.substr(answer.message.size() - 4), std::string("\xc6\x12\x00\x01", 4));
  EXPECT_EQ(names.name_of(0xc6120001)->str(), "allowed.example");
  EXPECT_EQ(ask(names, query("allowed.example")).message.substr(40), answer.message.substr(40));
  EXPECT_EQ(ask(names, query("x.wild.example")).message.back(), '\x02');
  EXPECT_EQ(ask(names, query("1.0.18.198.in-addr.arpa", 12)).verdict, DnsVerdict::answered);
}

TEST(Dns, EverythingElseDoesNotExist) {
  SyntheticNames names(10);
  for (auto const* name :
       {"evil.example", "secret.evil.example", "127.1", "wild.example", "localhost"}) {
    auto const answer = ask(names, query(name));
    EXPECT_EQ(answer.verdict, DnsVerdict::denied) << name;
    EXPECT_EQ(rcode(answer), 3) << name;
  }
  EXPECT_EQ(rcode(ask(names, query("9.0.18.198.in-addr.arpa", 12))), 3);
  EXPECT_EQ(rcode(ask(names, query("1.1.168.192.in-addr.arpa", 12))), 3);
  EXPECT_EQ(names.size(), 0U);
}

TEST(Dns, OfALongNameTheRestIsToldApartAndNotTold) {
  SyntheticNames names(10);
  auto const label = std::string(50, 'a');
  auto const told = [&](std::string const& name) { return ask(names, query(name)).name; };
  auto const one = told(label + "." + label + ".one.example");
  auto const two = told(label + "." + label + ".two.example");
  EXPECT_NE(one, two);
  EXPECT_EQ(one, told(label + "." + label + ".one.example"));
  EXPECT_EQ(one.substr(0, 80), (label + "." + label).substr(0, 80));
  EXPECT_EQ(one.find("one"), std::string::npos);
  EXPECT_FALSE(domain::HostName::parse(one)) << "nobody is advised to allow what was cut";
}

TEST(Dns, OtherTypesHaveNoData) {
  SyntheticNames names(10);
  for (char const type : {char{28}, char{16}, char{65}, char{15}}) {
    auto const answer = ask(names, query("allowed.example", type));
    EXPECT_EQ(answer.verdict, DnsVerdict::no_data);
    EXPECT_EQ(rcode(answer), 0);
  }
}

TEST(Dns, OddMessagesAreRefusedOrIgnored) {
  SyntheticNames names(10);
  EXPECT_EQ(ask(names, query("allowed.example", 1, std::string_view("\x81\x80", 2))).message,
            "");  // an answer
  EXPECT_EQ(rcode(ask(names, query("allowed.example", 1, std::string_view("\x28\x00", 2)))),
            4);  // UPDATE
  EXPECT_EQ(ask(names, "short").message, "");
  auto const good = query("allowed.example");
  for (std::size_t i = 12; i < good.size(); ++i)
    EXPECT_EQ(rcode(ask(names, good.substr(0, i))), 1) << i;
  auto two = good;
  two[5] = 2;
  EXPECT_EQ(rcode(ask(names, two)), 1);
  EXPECT_EQ(rcode(ask(names, good + "trailing")), 1);
  EXPECT_EQ(rcode(ask(names, good.substr(0, 12) + std::string("\xc0\x0c\0\1\0\1", 6))), 1);
  EXPECT_EQ(rcode(ask(names,
                      query(std::string(63, 'a') + "." + std::string(63, 'b') + "." +
                            std::string(63, 'c') + "." + std::string(63, 'd') + ".e"))),
            1);
  auto chaos = good;
  chaos.back() = 3;
  EXPECT_EQ(rcode(ask(names, chaos)), 5);
  std::string dotted = "\x12\x34\x01" + std::string("\0\0\1\0\0\0\0\0\0", 9) + "\x0f" +
                       "allowed.example" + std::string("\0\0\1\0\1", 5);
  EXPECT_EQ(rcode(ask(names, dotted)), 1);
}

TEST(Dns, OptIsReadButNeverEchoed) {
  SyntheticNames names(10);
  auto message = query("allowed.example");
  message[11] = 1;
  message += std::string("\0\0\x29\x10\0\0\0\0\0\0\x08", 11) + "secretsx";
  auto const answer = ask(names, message);
  EXPECT_EQ(answer.verdict, DnsVerdict::answered);
  EXPECT_EQ(answer.message.find("secret"), std::string::npos);
}

TEST(Dns, ASandboxHasALimitOfNames) {
  SyntheticNames names(2);
  EXPECT_EQ(ask(names, query("a.wild.example")).verdict, DnsVerdict::answered);
  EXPECT_EQ(ask(names, query("b.wild.example")).verdict, DnsVerdict::answered);
  EXPECT_EQ(ask(names, query("c.wild.example")).verdict, DnsVerdict::limited);
  EXPECT_EQ(ask(names, query("a.wild.example")).verdict, DnsVerdict::answered);
}

TEST(Dns, NamesInTheAuditAreHarmless) {
  SyntheticNames names(2);
  EXPECT_EQ(ask(names, query("\x1b[31mred.evil.example")).name, "??31mred.evil.example");
}

}  // namespace
}  // namespace gateway
