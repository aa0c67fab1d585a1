#include "gateway/testing.hpp"

namespace gateway {
namespace {

using namespace std::chrono_literals;
using namespace testing;

TEST(Flow, AnAllowedRequestArrivesReserialisedAndItsAnswerComesBack) {
  with_rig(allow_all_paths, [](Rig& rig) -> asio::awaitable<void> {
    auto const answer =
        co_await rig.ask(fmt::format("GET /x?q=1 HTTP/1.1\r\nhOST: API.corp.example:{}\r\nAccept: "
                                     "a\r\nConnection: x-hop\r\nX-Hop: 1\r\n\r\n",
                                     rig.origin.port()));
    EXPECT_TRUE(answer.ends_with("hello")) << answer;
    EXPECT_EQ(answer.find("Alt-Svc"), std::string::npos);
    EXPECT_EQ(rig.origin.received,
              fmt::format("GET /x?q=1 HTTP/1.1\r\nHost: api.corp.example:{}\r\nAccept: a\r\n\r\n",
                          rig.origin.port()));
    EXPECT_TRUE(rig.records.has("request", "allowed"));
  });
}

TEST(Flow, AKeptConnectionCarriesSeveralRequests) {
  with_rig(allow_all_paths, [](Rig& rig) -> asio::awaitable<void> {
    auto secured =
        co_await rig.secure(rig.connect("api.corp.example", rig.origin.port()), "api.corp.example");
    EXPECT_TRUE(secured);
    if (!secured) co_return;
    for (int i = 0; i < 3; ++i) {
      auto const sent = co_await (*secured)->write_text(fmt::format(
          "GET /{} HTTP/1.1\r\nHost: api.corp.example:{}\r\n\r\n", i, rig.origin.port()));
      EXPECT_TRUE(sent);
      auto const answer = co_await rig.read_answer(**secured);
      EXPECT_TRUE(answer.ends_with("hello")) << answer;
    }
    EXPECT_EQ(rig.origin.connections, 1);
  });
}

TEST(Flow, AnotherHostThanTheOneConnectedToIsMisdirected) {
  with_rig(allow_all_paths, [](Rig& rig) -> asio::awaitable<void> {
    auto const answer = co_await rig.ask(
        fmt::format("GET / HTTP/1.1\r\nHost: b.corp.example:{}\r\n\r\n", rig.origin.port()));
    EXPECT_TRUE(answer.starts_with("HTTP/1.1 421 ")) << answer;
    EXPECT_EQ(rig.origin.received, "");
    EXPECT_TRUE(rig.records.has("request", "authority_differs"));
  });
}

TEST(Flow, AnotherServerNameThanTheOneConnectedToIsRefused) {
  with_rig(allow_all_paths, [](Rig& rig) -> asio::awaitable<void> {
    auto const answer = co_await rig.ask(
        "GET / HTTP/1.1\r\nHost: b.corp.example\r\n\r\n", "api.corp.example", "b.corp.example");
    EXPECT_EQ(answer, "closed");
    EXPECT_TRUE(rig.records.has("connection", "server_name_differs"));
    EXPECT_EQ(rig.origin.connections, 0);
  });
}

TEST(Flow, WhatPolicyDoesNotNameIsClosedBeforeAByteIsRead) {
  with_rig(allow_all_paths, [](Rig& rig) -> asio::awaitable<void> {
    EXPECT_EQ(co_await rig.ask("GET / HTTP/1.1\r\n\r\n", "evil.example"), "closed");
    auto stranger = rig.connect_to(0xc6130000, 443);  // a synthetic address that nobody asked for
    EXPECT_EQ(co_await rig.read_answer(*stranger), "closed");
    auto literal = rig.connect_to(0x08080808, 443);
    EXPECT_EQ(co_await rig.read_answer(*literal), "closed");
    EXPECT_EQ(rig.dns.queries(), 0);
    EXPECT_TRUE(rig.records.has("connection", "no_rule"));
  });
}

TEST(Flow, MethodsAndPathsAreHeldAndTheRefusalSaysWhy) {
  with_rig(
      R"({"id":"api","hosts":["api.corp.example"],"ports":[TLS],"http":{"methods":["GET"],"paths":["/v1/**"]}})",
      [](Rig& rig) -> asio::awaitable<void> {
        auto const host = fmt::format("Host: api.corp.example:{}\r\n\r\n", rig.origin.port());
        EXPECT_TRUE((co_await rig.ask("GET /v1/a HTTP/1.1\r\n" + host)).ends_with("hello"));
        rig.origin.received.clear();
        for (auto const* line : {"POST /v1/a HTTP/1.1\r\n",
                                 "GET /v2 HTTP/1.1\r\n",
                                 "GET /v1/../v2 HTTP/1.1\r\n",
                                 "TRACE /v1/a HTTP/1.1\r\n"}) {
          auto const answer = co_await rig.ask(line + host);
          EXPECT_TRUE(answer.starts_with("HTTP/1.1 40")) << answer;
          EXPECT_NE(answer.find("\"message\":"), std::string::npos) << answer;
        }
        EXPECT_EQ(rig.origin.received, "");
      });
}

TEST(Flow, SmugglingShapesNeverReachTheServer) {
  with_rig(allow_all_paths, [](Rig& rig) -> asio::awaitable<void> {
    auto const host = fmt::format("Host: api.corp.example:{}\r\n", rig.origin.port());
    for (auto const* fields : {"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
                               "Content-Length: 1\r\nContent-Length: 2\r\n\r\nab",
                               "Transfer-Encoding: xchunked\r\n\r\n",
                               "X: a\r\n b\r\n\r\n"}) {
      auto const answer = co_await rig.ask("POST / HTTP/1.1\r\n" + host + fields);
      EXPECT_TRUE(answer.starts_with("HTTP/1.1 400 ")) << answer;
    }
    EXPECT_EQ(rig.origin.received, "");
  });
}

TEST(Flow, ANameThatLeadsInsideIsNotDialled) {
  with_rig(allow_all_paths, [](Rig& rig) -> asio::awaitable<void> {
    auto const answer = co_await rig.ask(
        fmt::format("GET / HTTP/1.1\r\nHost: inside.corp.example:{}\r\n\r\n", rig.origin.port()),
        "inside.corp.example");
    EXPECT_TRUE(answer.starts_with("HTTP/1.1 403 ")) << answer;
    EXPECT_TRUE(rig.records.has("request", "private_address"));
    EXPECT_EQ(rig.origin.connections, 0);
  });
}

TEST(Flow, AServerThatIsNotTheNameIsNotBelieved) {
  with_rig(allow_all_paths, [](Rig& rig) -> asio::awaitable<void> {
    rig.origin.host = "b.corp.example";
    auto const answer = co_await rig.ask(
        fmt::format("GET / HTTP/1.1\r\nHost: api.corp.example:{}\r\n\r\n", rig.origin.port()));
    EXPECT_TRUE(answer.starts_with("HTTP/1.1 502 ")) << answer;
    EXPECT_EQ(rig.origin.received, "");
  });
}

TEST(Flow, ACredentialIsPutInAndTheGuestsOwnIsTakenOut) {
  with_rig(with_credential, [](Rig& rig) -> asio::awaitable<void> {
    auto const answer = co_await rig.ask(fmt::format(
        "POST /v1/messages?api_key=mine&x=1 HTTP/1.1\r\nHost: api.corp.example:{}\r\nX-API-Key: "
        "mine\r\nAuthorization: Bearer mine\r\nCookie: c\r\nContent-Length: 2\r\n\r\nhi",
        rig.origin.port()));
    EXPECT_TRUE(answer.ends_with("hello")) << answer;
    EXPECT_EQ(rig.origin.received,
              fmt::format(
                  "POST /v1/messages?x=1 HTTP/1.1\r\nHost: api.corp.example:{}\r\nContent-Length: "
                  "2\r\nx-api-key: sk-secret-value-0123\r\n\r\nhi",
                  rig.origin.port()));
    EXPECT_EQ(rig.asked.size(), 1U);
  });
}

TEST(Flow, AReflectedCredentialIsScrubbed) {
  with_rig(with_credential, [](Rig& rig) -> asio::awaitable<void> {
    rig.origin.answer =
        "HTTP/1.1 200 OK\r\nX-Echo: sk-secret-value-0123\r\nSet-Cookie: s=1\r\nTransfer-Encoding: "
        "chunked\r\n\r\n8\r\nsk-secre\r\n";
    rig.origin.second_part = "c\r\nt-value-0123\r\n0\r\n\r\n";
    auto const answer = co_await rig.ask(fmt::format(
        "POST /v1/messages HTTP/1.1\r\nHost: api.corp.example:{}\r\n\r\n", rig.origin.port()));
    EXPECT_EQ(answer.find("secret"), std::string::npos) << answer;
    EXPECT_EQ(answer.find("Set-Cookie"), std::string::npos) << answer;
    EXPECT_NE(answer.find("********************"), std::string::npos) << answer;
  });
}

TEST(Flow, AReflectedCredentialIsScrubbedWhereverItIsPut) {
  with_rig(with_credential, [](Rig& rig) -> asio::awaitable<void> {
    rig.credential = "Basic dXNlcjpzay1zZWNyZXQtdmFsdWUtMDEyMw==";  // user:sk-secret-value-0123
    rig.origin.answer =
        "HTTP/1.1 200 sk-secret-value-0123\r\nX-sk-secret-value-0123: 1\r\nX-Echo: "
        "dXNlcjpzay1zZWNyZXQtdmFsdWUtMDEyMw==\r\nContent-Length: 20\r\n\r\nsk-secret-value-0123";
    auto const answer = co_await rig.ask(fmt::format(
        "POST /v1/messages HTTP/1.1\r\nHost: api.corp.example:{}\r\n\r\n", rig.origin.port()));
    EXPECT_TRUE(answer.starts_with("HTTP/1.1 200 ********************\r\n")) << answer;
    EXPECT_EQ(answer.find("secret"), std::string::npos) << answer;
    EXPECT_EQ(answer.find("dXNlcjpz"), std::string::npos) << answer;
    EXPECT_TRUE(answer.ends_with("\r\n\r\n********************")) << answer;
  });
}

TEST(Flow, ASecretWithSpacesIsScrubbedWhole) {
  with_rig(with_credential, [](Rig& rig) -> asio::awaitable<void> {
    rig.credential = "correct horse battery staple";
    rig.origin.answer = "HTTP/1.1 200 OK\r\nContent-Length: 28\r\n\r\ncorrect horse battery staple";
    auto const answer = co_await rig.ask(fmt::format(
        "POST /v1/messages HTTP/1.1\r\nHost: api.corp.example:{}\r\n\r\n", rig.origin.port()));
    EXPECT_TRUE(answer.ends_with("\r\n\r\n" + std::string(28, '*'))) << answer;
  });
}

TEST(Flow, WhatWasScrubbedIsToldAlsoOfAnAnswerThatWasBrokenOffOrCompressed) {
  with_rig(with_credential, [](Rig& rig) -> asio::awaitable<void> {
    rig.origin.close_after = true;
    for (auto const* answer :
         {"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nsk-secret-value-0123 ",
          "HTTP/1.1 200 OK\r\nX-Echo: sk-secret-value-0123\r\nContent-Encoding: "
          "gzip\r\nContent-Length: 2\r\n\r\nhi"}) {
      rig.origin.answer = answer;
      rig.records.all.clear();
      auto const got = co_await rig.ask(fmt::format(
          "POST /v1/messages HTTP/1.1\r\nHost: api.corp.example:{}\r\n\r\n", rig.origin.port()));
      EXPECT_EQ(got.find("secret"), std::string::npos) << got;
      bool const told = std::ranges::any_of(rig.records.all, [](auto const& one) {
        return one.scrub_hits == 1 && one.credential == "c1/0";
      });
      EXPECT_TRUE(told) << answer;
    }
  });
}

/// Which credentials were told to have come back, in this order.
std::vector<std::string> reflected(Records const& records) {
  std::vector<std::string> out;
  for (auto const& one : records.all)
    if (one.kind == "credential" && one.decision == "reflected") out.push_back(one.credential);
  return out;
}

TEST(Flow, ACredentialThatCameBackIsToldBeforeTheGuestHasThatPieceOfAnAnswerWithoutEnd) {
  with_rig(with_credential, [](Rig& rig) -> asio::awaitable<void> {
    rig.origin.answer =
        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        "1c\r\ndata: sk-secret-value-0123\n\n\r\n";
    auto secured =
        co_await rig.secure(rig.connect("api.corp.example", rig.origin.port()), "api.corp.example");
    EXPECT_TRUE(secured);
    if (!secured) co_return;
    auto const sent = co_await (*secured)->write_text(fmt::format(
        "POST /v1/messages HTTP/1.1\r\nHost: api.corp.example:{}\r\n\r\n", rig.origin.port()));
    EXPECT_TRUE(sent);
    std::string text;
    std::array<char, 4096> buffer;
    while (text.find("data: ") == std::string::npos) {
      auto const got = co_await (*secured)->read_some(buffer);
      if (!got || *got == 0) break;
      text.append(buffer.data(), *got);
    }
    EXPECT_NE(text.find("data: ********************\n"), std::string::npos) << text;
    EXPECT_EQ(reflected(rig.records), std::vector<std::string>{"c1/0"});
    EXPECT_FALSE(rig.records.has("request", "allowed")) << "the exchange goes on";
  });
}

TEST(Flow, OfSeveralCredentialsThatCameBackEachIsTold) {
  auto const rules =
      R"({"id":"llm","hosts":["api.corp.example"],"ports":[TLS],"inject":[{"credential":"llm-key"},{"credential":"second-key"}]})";
  with_rig(rules, [](Rig& rig) -> asio::awaitable<void> {
    auto const ask = [&] {
      return rig.ask(fmt::format("POST /v1/messages HTTP/1.1\r\nHost: api.corp.example:{}\r\n\r\n",
                                 rig.origin.port()));
    };
    // The one is the beginning of the other.
    rig.origin.answer =
        "HTTP/1.1 200 OK\r\nX-Echo: sk-secret-value-0123\r\nContent-Length: "
        "29\r\n\r\nsk-secret-value-0123-and-more";
    auto const both = co_await ask();
    EXPECT_TRUE(both.ends_with("\r\n\r\n" + std::string(29, '*'))) << both;
    EXPECT_EQ(reflected(rig.records), (std::vector<std::string>{"c1/0", "c2/0"}));
    rig.records.all.clear();
    rig.origin.answer =
        "HTTP/1.1 200 OK\r\nContent-Length: 29\r\n\r\nsk-secret-value-0123-and-more";
    auto const longer = co_await ask();
    EXPECT_TRUE(longer.ends_with(std::string(29, '*'))) << longer;
    EXPECT_EQ(reflected(rig.records), std::vector<std::string>{"c2/0"}) << "and that one alone";
  });
}

TEST(Flow, AReflectedCredentialIsScrubbedInFramesToo) {
  auto const rules =
      R"({"id":"llm","hosts":["api.corp.example"],"ports":[TLS],"http":{"websocket":true},"inject":[{"credential":"llm-key"}]})";
  with_rig(rules, [](Rig& rig) -> asio::awaitable<void> {
    rig.origin.answer =
        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "
        "websocket\r\n\r\n\x81\x18got sk-secret-value-0123\x81\x02ks";
    auto secured =
        co_await rig.secure(rig.connect("api.corp.example", rig.origin.port()), "api.corp.example");
    EXPECT_TRUE(secured);
    if (!secured) co_return;
    auto const sent = co_await (*secured)->write_text(
        fmt::format("GET /v1/messages HTTP/1.1\r\nHost: api.corp.example:{}\r\nConnection: "
                    "Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Extensions: "
                    "permessage-deflate\r\n\r\n",
                    rig.origin.port()));
    EXPECT_TRUE(sent);
    auto const answer = co_await rig.read_answer(**secured);
    EXPECT_TRUE(answer.ends_with("\x81\x18got ********************\x81\x02ks")) << answer;
    EXPECT_EQ(reflected(rig.records), std::vector<std::string>{"c1/0"}) << "they go on";
    EXPECT_EQ(rig.origin.received.find("deflate"), std::string::npos) << rig.origin.received;
  });
}

TEST(Flow, WhatTheBrokerRefusesIsNotSent) {
  with_rig(with_credential, [](Rig& rig) -> asio::awaitable<void> {
    auto const answer = co_await rig.ask(fmt::format(
        "POST /v1/other HTTP/1.1\r\nHost: api.corp.example:{}\r\n\r\n", rig.origin.port()));
    EXPECT_TRUE(answer.starts_with("HTTP/1.1 403 ")) << answer;
    EXPECT_EQ(rig.origin.received, "");
  });
}

TEST(Flow, WithoutABrokerWhatNeedsACredentialIsRefusedAndTheRestGoesOn) {
  auto const rules = with_credential + R"(,{"id":"b","hosts":["b.corp.example"],"ports":[TLS]})";
  with_rig(rules, [](Rig& rig) -> asio::awaitable<void> {
    rig.credential.clear();
    for (int i = 0; i < 2; ++i) {  // while it dies, and when it is gone
      auto const answer = co_await rig.ask(fmt::format(
          "POST /v1/messages HTTP/1.1\r\nHost: api.corp.example:{}\r\nContent-Length: 2\r\n\r\nhi",
          rig.origin.port()));
      EXPECT_TRUE(answer.starts_with("HTTP/1.1 503 ")) << answer;
      EXPECT_EQ(rig.origin.received, "");
    }
    rig.origin.host = "b.corp.example";
    auto const other = co_await rig.ask(
        fmt::format("GET / HTTP/1.1\r\nHost: b.corp.example:{}\r\n\r\n", rig.origin.port()),
        "b.corp.example");
    EXPECT_TRUE(other.starts_with("HTTP/1.1 200 ")) << other;
  });
}

TEST(Flow, WithoutANameServerNothingIsSentAndTheNextRequestFindsItAgain) {
  with_rig(allow_all_paths, [](Rig& rig) -> asio::awaitable<void> {
    auto const ask = [&] {
      return rig.ask(
          fmt::format("GET / HTTP/1.1\r\nHost: api.corp.example:{}\r\n\r\n", rig.origin.port()));
    };
    rig.dns.failing = true;
    auto const failed = co_await ask();
    EXPECT_TRUE(failed.starts_with("HTTP/1.1 502 ")) << failed;
    EXPECT_EQ(rig.origin.connections, 0);
    rig.dns.failing = false;
    auto const found = co_await ask();
    EXPECT_TRUE(found.starts_with("HTTP/1.1 200 ")) << found;
  });
}

TEST(Flow, AnswersStreamWithoutBeingBuffered) {
  with_rig(allow_all_paths, [](Rig& rig) -> asio::awaitable<void> {
    rig.origin.answer =
        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: "
        "chunked\r\n\r\n6\r\ndata:1\r\n";
    rig.origin.second_part = "6\r\ndata:2\r\n0\r\n\r\n";
    auto secured =
        co_await rig.secure(rig.connect("api.corp.example", rig.origin.port()), "api.corp.example");
    EXPECT_TRUE(secured);
    if (!secured) co_return;
    auto const sent = co_await (*secured)->write_text(
        fmt::format("GET / HTTP/1.1\r\nHost: api.corp.example:{}\r\n\r\n", rig.origin.port()));
    EXPECT_TRUE(sent);
    std::string first;
    std::array<char, 4096> buffer;
    while (first.find("data:1") == std::string::npos) {
      auto const got = co_await (*secured)->read_some(buffer);
      if (!got || *got == 0) break;
      first.append(buffer.data(), *got);
    }
    EXPECT_EQ(first.find("data:2"), std::string::npos);
    auto const rest = co_await rig.read_answer(**secured);
    EXPECT_NE(rest.find("data:2"), std::string::npos);
  });
}

TEST(Flow, ANewPolicyCutsWhatItNoLongerAllows) {
  with_rig(allow_all_paths, [](Rig& rig) -> asio::awaitable<void> {
    rig.origin.answer = "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\npart";
    auto secured =
        co_await rig.secure(rig.connect("api.corp.example", rig.origin.port()), "api.corp.example");
    EXPECT_TRUE(secured);
    if (!secured) co_return;
    auto const sent = co_await (*secured)->write_text(
        fmt::format("GET / HTTP/1.1\r\nHost: api.corp.example:{}\r\n\r\n", rig.origin.port()));
    EXPECT_TRUE(sent);
    std::array<char, 4096> buffer;
    auto got = co_await (*secured)->read_some(buffer);
    EXPECT_TRUE(got && *got > 0);
    auto const applied = rig.gateway->apply(
        rig.policy(R"({"id":"other","hosts":["b.corp.example"]})", "allowlist", "strict", 2));
    EXPECT_EQ(applied.error, "");
    EXPECT_EQ(applied.generation, 2U);
    EXPECT_EQ(applied.cut, 1U);
    while (got && *got > 0)
      got = co_await (*secured)->read_some(buffer);
    EXPECT_FALSE(got);
    EXPECT_EQ(co_await rig.ask("GET / HTTP/1.1\r\n\r\n"), "closed");
    EXPECT_NE(rig.gateway->apply(rig.policy(allow_all_paths, "allowlist", "strict", 1)).error, "");
  });
}

TEST(Flow, WebSocketsPassOnRulesThatAllowThem) {
  auto const rules =
      R"({"id":"ws","hosts":["api.corp.example"],"ports":[PLAIN],"http":{"websocket":true}},{"id":"no","hosts":["b.corp.example"],"ports":[PLAIN]})";
  with_rig(rules, [](Rig& rig) -> asio::awaitable<void> {
    rig.plain.answer =
        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "
        "websocket\r\n\r\n\x81\x05"
        "frame";
    auto const head = [&](std::string const& host) {
      return fmt::format(
          "GET /ws HTTP/1.1\r\nHost: {}:{}\r\nConnection: Upgrade\r\nUpgrade: "
          "websocket\r\nSec-WebSocket-Key: k\r\n\r\n",
          host,
          rig.plain.port());
    };
    auto stream = rig.connect("api.corp.example", rig.plain.port());
    auto sent = co_await stream->write_text(head("api.corp.example"));
    EXPECT_TRUE(sent);
    auto const answer = co_await rig.read_answer(*stream);
    EXPECT_TRUE(answer.starts_with("HTTP/1.1 101 ")) << answer;
    EXPECT_TRUE(answer.ends_with("frame")) << answer;
    rig.plain.answer =
        "\x81\x04"
        "back";
    sent = co_await stream->write_text("\x81\x89maskto server");
    std::array<char, 100> buffer;
    auto got = co_await stream->read_some(buffer);
    EXPECT_EQ(std::string(buffer.data(), got.value_or(0)), rig.plain.answer);
    // A shell in the place of frames goes nowhere and ends the connection.
    sent = co_await stream->write_text("SSH-2.0-OpenSSH\r\n");
    got = co_await stream->read_some(buffer);
    EXPECT_EQ(got.value_or(0), 0U);
    EXPECT_EQ(rig.plain.received.find("SSH"), std::string::npos);
    auto refused = rig.connect("b.corp.example", rig.plain.port());
    sent = co_await refused->write_text(head("b.corp.example"));
    auto const no = co_await rig.read_answer(*refused);
    EXPECT_TRUE(no.starts_with("HTTP/1.1 403 ")) << no;
  });
}

TEST(Flow, RawAndPassthroughRulesRelayBytesToTheRightName) {
  auto const rules =
      R"({"id":"raw","hosts":["raw.corp.example"],"ports":[PLAIN],"protocol":"tcp"},{"id":"pin","hosts":["api.corp.example"],"ports":[TLS],"tls":"passthrough"})";
  with_rig(rules, [](Rig& rig) -> asio::awaitable<void> {
    auto raw = rig.connect("raw.corp.example", rig.plain.port());
    auto const sent = co_await raw->write_text("\x01 not http");
    EXPECT_TRUE(sent);
    EXPECT_TRUE((co_await rig.read_answer(*raw)).ends_with("hello"));
    EXPECT_EQ(rig.plain.received, "\x01 not http");
    // Passthrough: the guest sees the world's certificate, not ours.
    auto trust = tls::ClientContext::from_pem(rig.world->authority_pem());
    auto secured = co_await tls::connect(*trust,
                                         rig.connect("api.corp.example", rig.origin.port()),
                                         "api.corp.example",
                                         base::system_clock().in(5s));
    EXPECT_TRUE(secured) << secured.error().message();
    auto const wrong = co_await tls::connect(*trust,
                                             rig.connect("api.corp.example", rig.origin.port()),
                                             "b.corp.example",
                                             base::system_clock().in(5s));
    EXPECT_FALSE(wrong);
    EXPECT_TRUE(rig.records.has("connection", "server_name_differs"));
  });
}

TEST(Flow, NameBindingJudgesAndDialsTheNameWhateverAddressWasDialled) {
  with_rig(
      R"({"id":"api","hosts":["api.corp.example"],"ports":[TLS,443]})",
      [](Rig& rig) -> asio::awaitable<void> {
        // Port 443 to an address of the guest's choice: judged by SNI. Nothing listens at the
        // name's port 443 here, so the dial fails after the decision.
        auto secured = co_await rig.secure(rig.connect_to(0xcb007109, 443), "api.corp.example");
        EXPECT_TRUE(secured) << secured.error().message();
        auto const evil = co_await rig.secure(rig.connect_to(0xcb007109, 443), "evil.example");
        EXPECT_FALSE(evil);
        EXPECT_TRUE(rig.records.has("connection", "no_rule"));
      },
      "allowlist",
      "name");
}

TEST(Flow, WithoutAWorkerThePolicyAgesAndTheNetworkCloses) {
  async::run_test([]() -> asio::awaitable<void> {
    Records records;
    Gateway gateway(co_await asio::this_coro::executor, records, nullptr);
    EXPECT_EQ(gateway.policy(), nullptr);
    wire::GatewayStart start;
    start.sandbox = "i1";
    start.policy_max_age_s = 0;
    EXPECT_TRUE(gateway.start(start));
    co_await async::sleep_for(5ms);
    EXPECT_EQ(gateway.policy(), nullptr);
    EXPECT_FALSE(gateway.admit_connection());
  });
}

TEST(Flow, WhatWaitedWhileThePolicyGrewTooOldIsNotSent) {
  async::run_test([]() -> asio::awaitable<void> {
    Rig rig(co_await asio::this_coro::executor, with_credential, "allowlist", "strict", 1);
    rig.busy = 3;  // it is held back for its credential, judged already
    co_await async::sleep_for(400ms);
    auto const answer = co_await rig.ask(fmt::format(
        "POST /v1/messages HTTP/1.1\r\nHost: api.corp.example:{}\r\n\r\n", rig.origin.port()));
    EXPECT_EQ(answer.find("hello"), std::string::npos) << answer;
    EXPECT_EQ(rig.origin.received, "");
    EXPECT_TRUE(rig.records.has("request", "no_policy"));
    co_await rig.close();
  });
}

}  // namespace
}  // namespace gateway
