#include "wire/text.hpp"

#include "wire/credential.hpp"
#include "wire/gateway.hpp"

#include <gtest/gtest.h>

namespace wire {
namespace {

template <class T> void expect_same(T const& value) {
  std::string text = "before ";
  append_text(text, value);
  EXPECT_EQ(text, "before " + encode_text(value));
}

TEST(Text, IsWhatTheDocumentWouldBe) {
  GatewayEvent event;
  expect_same(event);
  event.decision.emplace();
  event.decision->kind = "request";
  event.decision->path = "/a\"b\\c/\b\f\n\r\t\x01\x1f\x7f/\xc3\xa9";
  event.decision->status = -1;
  event.decision->up_bytes = std::numeric_limits<std::uint64_t>::max();
  event.names.emplace();
  expect_same(event);
  (*event.names)["a"] = "198.18.0.1";
  (*event.names)["b"] = "";
  event.broker_lost = true;
  expect_same(event);
}

TEST(Text, KnowsListsAndEnums) {
  CredentialBinding binding;
  expect_same(binding);
  binding.hosts = {"a.example", "b.example"};
  binding.ports = {1, 65535};
  expect_same(binding);
  Policy policy;
  policy.rules.emplace_back();
  policy.rules[0].hosts = {"*"};
  expect_same(policy);
}

TEST(Text, EveryByteIsEscapedAsInTheDocument) {
  std::string all;
  for (int byte = 0; byte < 128; ++byte)
    all += static_cast<char>(byte);
  expect_same(all);
}

}  // namespace
}  // namespace wire
