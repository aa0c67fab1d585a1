// Holds the fake server against recorded exchanges with a real Firecracker 1.17 (test/data): what
// the rules of its protocol decide, the fake must decide alike. What the host decides (a missing
// file, a full disk, no KVM) the recording says, and the fake must have let it pass until then.

#include "vmm/firecracker_api.hpp"
#include "vmm/firecracker_fake.hpp"
#include "wire/codec.hpp"

#include <algorithm>
#include <fstream>

#include <gtest/gtest.h>

namespace vmm::firecracker {
namespace {

struct Exchange {
  std::string scenario;
  std::string step;
  std::string method;
  std::string path;
  std::string body;
  int status = 0;
  std::string answer;
};
BOOST_DESCRIBE_STRUCT(Exchange, (), (scenario, step, method, path, body, status, answer))

std::vector<Exchange> recorded() {
  std::vector<Exchange> all;
  std::ifstream file(FIRECRACKER_EXCHANGES);
  for (std::string line; std::getline(file, line);) {
    auto one = wire::decode_text<Exchange>(line, wire::UnknownKeys::reject);
    EXPECT_TRUE(one) << line << (one ? "" : one.error().message());
    if (one) all.push_back(std::move(*one));
  }
  return all;
}

/// Words of refusals in which the host or an emulated device speaks, not the protocol. The devices
/// are those that no driver of ours uses.
bool says_the_host(std::string_view answer) {
  constexpr std::string_view words[] = {"os error",
                                        "Kernel Loader",
                                        "must be shorter than SUN_LEN",
                                        "bitcode",
                                        "CRC64",
                                        "Magic value",
                                        "Invalid data version",
                                        "IO Error",
                                        "Snapshot size exceeds",
                                        "Total sum of memory",
                                        "Balloon",
                                        "MMDS",
                                        "hotplug",
                                        "Pmem",
                                        "pmem"};
  return std::ranges::any_of(words, [&](auto word) { return answer.contains(word); });
}

std::string state_in(std::string_view answer) {
  auto const parsed = wire::parse_json(answer);
  auto const* object = parsed ? parsed->if_object() : nullptr;
  auto const* state = object ? object->if_contains("state") : nullptr;
  return state && state->is_string() ? std::string(state->get_string()) : std::string();
}

TEST(FirecrackerReplay, TheFakeDecidesAsTheRealOneDid) {
  auto const exchanges = recorded();
  ASSERT_GT(exchanges.size(), 500U);
  std::string scenario;
  Fake fake;
  int by_rule = 0;
  int refused_by_rule = 0;
  int by_host = 0;
  for (auto const& one : exchanges) {
    if (one.scenario != scenario) {
      fake = Fake();
      fake.snapshot_drives = {"rootfs", "volume0"};
      fake.snapshot_links = {"eth0"};
      scenario = one.scenario;
    }
    SCOPED_TRACE(fmt::format(
        "{} {}: {} {} {}", one.scenario, one.step, one.method, one.path, one.body.substr(0, 300)));
    bool const host = one.status >= 400 && says_the_host(one.answer);
    if (host) fake.fail_next(one.status, one.answer);
    // Over the wire, as a client would.
    auto request = request_text(one.method, one.path, one.body);
    ResponseReader reader;
    ASSERT_TRUE(reader.feed(fake.take(request)));
    auto const answer = reader.next();
    ASSERT_TRUE(answer);
    EXPECT_EQ(answer->status, one.status) << "fake: " << fake.refused << "\nreal: " << one.answer;
    if (host) {
      EXPECT_EQ(fake.refused, fault_in(one.answer)) << "refused before the host was asked";
      ++by_host;
    } else {
      ++by_rule;
      if (one.status >= 400) ++refused_by_rule;
    }
    if (one.path == "/" && one.method == "GET" && one.status == 200) {
      EXPECT_EQ(state_in(answer->body), state_in(one.answer));
    }
  }
  // Else the lists above could grow until nothing is compared.
  EXPECT_GE(by_rule, 400);
  EXPECT_GE(refused_by_rule, 120);
  EXPECT_LE(by_host, 100);
}

TEST(FirecrackerReplay, EveryRecordedRefusalHasWordsForTheOperator) {
  for (auto const& one : recorded()) {
    if (one.status < 400) continue;
    auto const words = fault_in(one.answer);
    EXPECT_FALSE(words.empty()) << one.scenario << one.step;
    EXPECT_EQ(words.find("fault_message"), std::string::npos) << words;
  }
}

}  // namespace
}  // namespace vmm::firecracker
