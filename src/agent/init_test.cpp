#include "agent/testing.hpp"

namespace agent {
namespace {

using testing::Guest;
using testing::with_guest;

std::string const key(64, 'a');
std::string const other_key(64, 'b');

asio::awaitable<testing::Answer> init(Guest& guest, std::string with_key, std::string more = "") {
  co_return co_await guest.request(
      "POST", "/init", {}, R"({"init_key":")" + with_key + "\"" + more + "}");
}

TEST(Init, TheFirstCallSetsTheKeyAndLaterOnesMustCarryIt) {
  with_guest([](Guest& guest) -> asio::awaitable<void> {
    auto const first = co_await init(guest, key, R"(,"nonce":"n-1","accessToken":"t1")");
    EXPECT_EQ(first.status, 204) << first.body;
    EXPECT_EQ(first.headers.get("x-space-nonce"), "n-1");
    auto const stranger = co_await init(guest, other_key, R"(,"nonce":"n-2","accessToken":"t2")");
    EXPECT_EQ(stranger.status, 401);
    EXPECT_EQ(stranger.headers.get("x-space-nonce"), "");
    EXPECT_TRUE(guest.agent->context().access_token.equals("t1"))
        << "a refused call changes nothing";
    auto const again = co_await init(guest, key, R"(,"nonce":"n-3","accessToken":"t3")");
    EXPECT_EQ(again.status, 204);
    EXPECT_TRUE(guest.agent->context().access_token.equals("t3"));
    auto const kept = co_await init(guest, key);
    EXPECT_EQ(kept.status, 204);
    EXPECT_TRUE(guest.agent->context().access_token.equals("t3")) << "absent means unchanged";
  });
}

TEST(Init, TheKeyIsReplacedByWhoHasIt) {
  with_guest([](Guest& guest) -> asio::awaitable<void> {
    co_await init(guest, key);
    auto const next = R"(,"next_init_key":")" + other_key + "\"";
    auto const stranger = co_await init(guest, other_key, next);
    EXPECT_EQ(stranger.status, 401);
    auto const bad = co_await init(guest, key, R"(,"next_init_key":"short","accessToken":"t1")");
    EXPECT_EQ(bad.status, 400);
    EXPECT_TRUE(guest.agent->context().access_token.empty()) << "a refused call changes nothing";
    auto const replaced = co_await init(guest, key, next);
    EXPECT_EQ(replaced.status, 204) << replaced.body;
    auto const old = co_await init(guest, key);
    EXPECT_EQ(old.status, 401);
    auto const kept = co_await init(guest, other_key);
    EXPECT_EQ(kept.status, 204);
  });
}

TEST(Init, GivesTheMachineItsIdentity) {
  with_guest([](Guest& guest) -> asio::awaitable<void> {
    auto const more = fmt::format(
        R"(,"entropy":"{}","timestamp":"2031-02-03T04:05:06.5Z","hostname":"box-1","machine_id":"{}",)"
        R"("envVars":{{"E2B_SANDBOX":"true"}},"defaultUser":"other","defaultWorkdir":"/usr")",
        std::string(64, '4'),
        std::string(32, 'f'));
    auto const answer = co_await init(guest, key, more);
    EXPECT_EQ(answer.status, 204) << answer.body;
    EXPECT_EQ(guest.machine.entropy, std::string(32, 'D'));
    EXPECT_EQ(guest.machine.hostname, "box-1");
    EXPECT_EQ(guest.machine.grown, 1);
    EXPECT_EQ(guest.machine.machine_id, std::string(32, 'f'));
    EXPECT_EQ(guest.machine.clock.value(), parse_rfc3339("2031-02-03T04:05:06.500000Z").value());
    auto const envs = co_await guest.get("/envs");
    EXPECT_EQ(envs.body, R"({"E2B_SANDBOX":"true"})");
    auto const token = co_await init(guest, key, R"(,"accessToken":"")");
    EXPECT_EQ(token.status, 204);
    EXPECT_EQ(guest.machine.ended, 0) << "a machine that was not away keeps its connections";
    auto const back = co_await init(guest, key, R"(,"goes_on":true)");
    EXPECT_EQ(back.status, 204);
    EXPECT_EQ(guest.machine.ended, 1);
    auto const kept = co_await guest.get("/envs");
    EXPECT_EQ(kept.body, envs.body) << "a new token alone changes nothing else";
    EXPECT_EQ(guest.agent->context().default_user, "other");
    if (::getuid() == 0) {
      auto const events = co_await guest.run("id -un 2>/dev/null; id -u; pwd; echo $E2B_SANDBOX");
      EXPECT_NE(events.bytes("stdout").find("4242\n/usr\ntrue\n"), std::string::npos)
          << events.bytes("stdout");
    }
  });
}

TEST(Init, TheKeyOpensMetricsAndNothingElse) {
  with_guest([](Guest& guest) -> asio::awaitable<void> {
    co_await init(guest, key, R"(,"accessToken":"t1")");
    testing::HeaderList const host{{"X-Space-Init-Key", key}};
    testing::HeaderList const stranger{{"X-Space-Init-Key", other_key}};
    auto const metrics = co_await guest.request("GET", "/metrics", host, "");
    EXPECT_EQ(metrics.status, 200) << metrics.body;
    auto const refused = co_await guest.request("GET", "/metrics", stranger, "");
    EXPECT_EQ(refused.status, 401);
    for (auto const& [method, path] : {std::pair("GET", "/envs"),
                                       std::pair("GET", "/files?path=/etc/passwd"),
                                       std::pair("POST", "/files/compose"),
                                       std::pair("POST", "/process.Process/List"),
                                       std::pair("POST", "/filesystem.Filesystem/Stat")}) {
      auto const answer = co_await guest.request(method, path, host, "{}");
      EXPECT_EQ(answer.status, 401) << path;
    }
  });
}

TEST(Init, AnAuthorityIsTrustedByTheGuestAndItsPrograms) {
  with_guest([](Guest& guest) -> asio::awaitable<void> {
    co_await init(guest, key);
    auto const before = co_await guest.run("echo -n ${SSL_CERT_FILE:-none}");
    EXPECT_EQ(before.bytes("stdout"), "none");
    auto const answer = co_await init(
        guest,
        key,
        R"(,"caBundle":"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")");
    EXPECT_EQ(answer.status, 204) << answer.body;
    EXPECT_NE(guest.machine.authority.find("AAAA"), std::string::npos);
    auto const after = co_await guest.run("echo -n $SSL_CERT_FILE $PIP_CERT");
    EXPECT_EQ(after.bytes("stdout"), fmt::format("{0} {0}", trusted_bundle));
  });
}

TEST(TrustedBundle, OursIsAddedOnceAndReplaced) {
  auto const first = bundle_text("THEIRS", "ONE\n");
  EXPECT_TRUE(first.starts_with("THEIRS\n")) << first;
  EXPECT_NE(first.find("\nONE\n"), std::string::npos) << first;
  auto const second = bundle_text(first, "TWO\n");
  EXPECT_TRUE(second.starts_with("THEIRS\n")) << second;
  EXPECT_EQ(second.find("ONE"), std::string::npos) << second;
  EXPECT_EQ(bundle_text(second, "TWO\n"), second);
}

TEST(Init, WhatIsNotValidIsRefusedAsAWhole) {
  with_guest([](Guest& guest) -> asio::awaitable<void> {
    std::string const bad[] = {
        R"(,"entropy":"xyz")",
        R"(,"entropy":"abcd")",
        R"(,"timestamp":"yesterday")",
        R"(,"timestamp":"2031-02-30T00:00:00Z")",
        R"(,"hostname":"a b")",
        R"(,"hostname":"a\n127.0.0.1 b")",
        R"(,"machine_id":"12")",
        R"(,"envVars":{"A=B":"c"})",
        R"(,"envVars":{"A":7})",
        R"(,"nonce":"a\r\nb: c")",
        R"(,"defaultUser":"")",
        R"(,"caBundle":"no certificate")",
    };
    for (auto const& more : bad) {
      auto const answer = co_await init(guest, key, R"(,"accessToken":"t")" + more);
      EXPECT_EQ(answer.status, 400) << more;
      EXPECT_TRUE(answer.json().at("message").is_string());
      EXPECT_TRUE(guest.agent->context().init_key.empty()) << more;
      EXPECT_TRUE(guest.agent->context().access_token.empty()) << more;
    }
    auto const keyless = co_await guest.request("POST", "/init", {}, "{}");
    EXPECT_EQ(keyless.status, 400);
    auto const weak = co_await init(guest, "abc");
    EXPECT_EQ(weak.status, 400);
    auto const got = co_await guest.get("/init");
    EXPECT_EQ(got.status, 405);
  });
}

TEST(ParseRfc3339, ReadsOffsetsAndFractions) {
  auto const epoch = base::WallTime();
  EXPECT_EQ(parse_rfc3339("1970-01-01T00:00:00Z").value(), epoch);
  EXPECT_EQ(parse_rfc3339("1970-01-01T01:00:00+01:00").value(), epoch);
  EXPECT_EQ(parse_rfc3339("1970-01-01T00:00:01.000001Z").value(),
            epoch + std::chrono::microseconds(1'000'001));
  EXPECT_EQ(parse_rfc3339("1970-01-01T00:00:00.123456789Z").value() - epoch,
            std::chrono::nanoseconds(123'456'789));
  for (auto const* bad : {"",
                          "1970-01-01",
                          "1970-01-01T00:00:00",
                          "1970-01-01T00:00:00.Z",
                          "1970-13-01T00:00:00Z",
                          "1969-01-01T00:00:00Z",
                          "9999-01-01T00:00:00Z",
                          "1970-01-01T25:00:00Z",
                          "1970-01-01T00:00:00Zx"}) {
    EXPECT_FALSE(parse_rfc3339(bad)) << bad;
  }
}

TEST(Ext4Size, ReadsTheSuperblockAndNothingElse) {
  std::string block(1024, '\0');
  EXPECT_FALSE(ext4_size(block));
  block[56] = '\x53';
  block[57] = '\xef';
  block[24] = 2;  // 4 KiB
  block[6] = 0x10;
  EXPECT_EQ(ext4_size(block)->blocks, 1U << 20);
  EXPECT_EQ(ext4_size(block)->block_bytes, 4096U);
  block[0x150] = 1;
  EXPECT_EQ(ext4_size(block)->blocks, 1U << 20)
      << "the high half counts in 64-bit file systems only";
  block[96] = '\x80';
  EXPECT_EQ(ext4_size(block)->blocks, (1ULL << 32) + (1U << 20));
  block[24] = 7;
  EXPECT_FALSE(ext4_size(block)) << "no such block size";
  EXPECT_FALSE(ext4_size(block.substr(0, 100)));
}

TEST(HostsText, RenewsOurOwnLinesAndKeepsTheOthers) {
  auto const first = hosts_text("", "one");
  EXPECT_NE(first.find("127.0.0.1\tlocalhost"), std::string::npos);
  EXPECT_NE(first.find("127.0.1.1\tone"), std::string::npos);
  auto const second = hosts_text(first + "10.0.0.1 mine\n", "two");
  EXPECT_EQ(second.find("one"), std::string::npos);
  EXPECT_NE(second.find("127.0.1.1\ttwo"), std::string::npos);
  EXPECT_NE(second.find("10.0.0.1 mine\n"), std::string::npos);
  EXPECT_EQ(hosts_text(second, "two"), second);
}

}  // namespace
}  // namespace agent
