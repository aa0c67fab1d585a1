#include "proxy/access.hpp"
#include "proxy/digest.hpp"
#include "proxy/envelopes.hpp"
#include "proxy/reply.hpp"
#include "proxy/target.hpp"
#include "wire/codec.hpp"

#include <gtest/gtest.h>

namespace proxy {
namespace {

std::string target_of(http::Headers headers) {
  auto const target = find_target({.method = "GET", .target = "/", .headers = std::move(headers)},
                                  "space.localhost");
  if (auto const* guest = std::get_if<ToGuest>(&target))
    return fmt::format("{}:{}", guest->sandbox, guest->port);
  if (auto const* token = std::get_if<ToTokensGuest>(&target)) return "token " + token->token;
  if (auto const* nobody = std::get_if<ToNobody>(&target)) return "400 " + nobody->why;
  return "api";
}

std::string by_host(std::string host) {
  return target_of({{"Host", std::move(host)}});
}

TEST(Target, AHostNamesPortAndSandbox) {
  EXPECT_EQ(by_host("49983-iabc0.space.localhost:7443"), "iabc0:49983");
  EXPECT_EQ(by_host("8080-IABC0.Space.LOCALHOST"), "iabc0:8080");
  EXPECT_EQ(by_host("api.space.localhost:7443"), "api");
  EXPECT_EQ(by_host("space.localhost"), "api");
  for (std::string const host : {
           "x-iabc.space.localhost",
           "0-iabc.space.localhost",
           "65536-iabc.space.localhost",
           "-iabc.space.localhost",
           "8080-.space.localhost",
           "8080.space.localhost",
           "8080-i_c.space.localhost",
           "8080-i-c.space.localhost",
           "a.8080-iabc.space.localhost",
           "+80-iabc.space.localhost",
           "8080-iabc.evil.test",
           "8080-iabcspace.localhost",
           "evil.test",
           "space.localhost.evil.test",
           ".space.localhost",
           "8080-iabc.space.localhost.",
           "8080-iabc%2e.space.localhost",
           "www.space.localhost",
       }) {
    EXPECT_TRUE(by_host(host).starts_with("400 Invalid ")) << host << " " << by_host(host);
  }
  EXPECT_TRUE(by_host("8080-" + std::string(65, 'a') + ".space.localhost").starts_with("400"));
}

TEST(Target, AHostWithoutANameGoesByHeaders) {
  for (std::string const host :
       {"127.0.0.1:7380", "localhost", "[::1]:7380", "sandbox.space.localhost", ""}) {
    EXPECT_EQ(target_of({{"Host", host}}), "api");
    EXPECT_EQ(target_of({{"Host", host}, {"E2b-Sandbox-Id", "iabc"}, {"e2b-sandbox-port", "80"}}),
              "iabc:80");
    EXPECT_EQ(target_of({{"Host", host}, {"X-Access-Token", "t"}}), "token t");
    EXPECT_EQ(target_of({{"Host", host}, {"E2b-Sandbox-Id", "iabc"}}),
              "400 E2b-Sandbox-Id and E2b-Sandbox-Port must be sent together");
    EXPECT_TRUE(target_of({{"Host", host}, {"E2b-Sandbox-Port", "80"}}).starts_with("400"));
    EXPECT_TRUE(target_of({{"Host", host}, {"E2b-Sandbox-Id", "../x"}, {"E2b-Sandbox-Port", "80"}})
                    .starts_with("400"));
    EXPECT_TRUE(target_of({{"Host", host}, {"E2b-Sandbox-Id", "iabc"}, {"E2b-Sandbox-Port", "80x"}})
                    .starts_with("400"));
  }
  // One URL for everything: 2.21.1 sends the sandbox's headers on the API's calls too.
  EXPECT_EQ(target_of({{"Host", "127.0.0.1"},
                       {"X-API-KEY", "k"},
                       {"E2b-Sandbox-Id", "iabc"},
                       {"E2b-Sandbox-Port", "80"}}),
            "api");
  // A host that names a sandbox is not overruled by headers.
  EXPECT_EQ(target_of({{"Host", "80-iabc.space.localhost"},
                       {"E2b-Sandbox-Id", "iother"},
                       {"E2b-Sandbox-Port", "81"},
                       {"X-API-KEY", "k"}}),
            "iabc:80");
}

wire::Route secure_route() {
  wire::Route route;
  route.sandbox = "iabc";
  route.epoch = 1;
  route.state = "running";
  route.access_token_sha256 = sha256_hex("secret");
  return route;
}

int status_of(wire::Route const& route,
              std::uint16_t port,
              std::string target,
              http::Headers headers = {}) {
  auto const refusal = refusal_of(
      route, port, {.method = "GET", .target = std::move(target), .headers = std::move(headers)});
  return refusal ? refusal->status : 200;
}

TEST(Access, TheAgentsPortNeedsTheSandboxesToken) {
  auto route = secure_route();
  EXPECT_EQ(status_of(route, agent_port, "/process.Process/List"), 401);
  EXPECT_EQ(status_of(route, agent_port, "/process.Process/List", {{"x-access-token", "secret"}}),
            200);
  EXPECT_EQ(status_of(route, agent_port, "/x", {{"X-Access-Token", "wrong"}}), 401);
  EXPECT_EQ(status_of(route, agent_port, "/x", {{"X-Access-Token", ""}}), 401);
  EXPECT_EQ(status_of(route, agent_port, "/x", {{"X-Access-Token", route.access_token_sha256}}),
            401);
  EXPECT_EQ(status_of(route, agent_port, "/health"), 200);
  EXPECT_EQ(status_of(route, agent_port, "/files?path=a&signature=v1_x"), 200);
  EXPECT_EQ(status_of(route, agent_port, "/files?path=signature"), 401);
  EXPECT_EQ(status_of(route, agent_port, "/files"), 401);
  EXPECT_EQ(status_of(route, agent_port, "/files/compose?signature=x"), 401);
  EXPECT_EQ(status_of(route, agent_port, "/%68ealth"), 401);
  route.access_token_sha256.clear();  // whatever went wrong upstairs: closed
  EXPECT_EQ(status_of(route, agent_port, "/x", {{"X-Access-Token", ""}}), 401);
  EXPECT_EQ(status_of(route, agent_port, "/x"), 401);
  route.secure = false;
  EXPECT_EQ(status_of(route, agent_port, "/x"), 200);
}

TEST(Access, OtherPortsArePublicUnlessTheSandboxSaysNo) {
  auto route = secure_route();
  EXPECT_EQ(status_of(route, 8080, "/"), 200);
  route.public_traffic = false;
  route.traffic_token_sha256 = sha256_hex("traffic");
  EXPECT_EQ(status_of(route, 8080, "/"), 403);
  EXPECT_EQ(status_of(route, 8080, "/health"), 403);
  EXPECT_EQ(status_of(route, 8080, "/", {{"E2B-Traffic-Access-Token", "traffic"}}), 200);
  EXPECT_EQ(status_of(route, 8080, "/", {{"e2b-traffic-access-token", "other"}}), 403);
  EXPECT_EQ(status_of(route, 8080, "/", {{"X-Access-Token", "secret"}}), 403);
  EXPECT_EQ(status_of(route, agent_port, "/x", {{"X-Access-Token", "secret"}}), 200);
  route.traffic_token_sha256.clear();
  EXPECT_EQ(status_of(route, 8080, "/", {{"e2b-traffic-access-token", ""}}), 403);
}

TEST(Access, OnlyARunningSandboxIsReached) {
  auto route = secure_route();
  for (std::string const state : {"pausing",
                                  "paused",
                                  "suspending",
                                  "suspended",
                                  "deleting",
                                  "deleted",
                                  "failed",
                                  "",
                                  "unheard-of"}) {
    route.state = state;
    EXPECT_EQ(status_of(route, 8080, "/"), 502) << state;
    EXPECT_EQ(status_of(route, agent_port, "/health"), 502) << state;
    EXPECT_EQ(status_of(route, agent_port, "/x"), 401) << state;
  }
  for (std::string const state : {"creating", "resuming", "restoring"}) {
    route.state = state;
    EXPECT_EQ(status_of(route, 8080, "/"), 409) << state;
  }
}

TEST(Access, HostOnlyPathsAreRecognisedHoweverTheyAreSpelled) {
  for (std::string const path : {"/init",
                                 "/freeze",
                                 "/unfreeze",
                                 "/collapse",
                                 "/fsfreeze",
                                 "/fsthaw",
                                 "/upgrade",
                                 "//init",
                                 "/init/",
                                 "/./init",
                                 "/a/../init",
                                 "/%69nit",
                                 "/init%2f",
                                 "/INIT",
                                 "/init;x",
                                 "/../init",
                                 "/%2e%2e/init"}) {
    EXPECT_TRUE(is_host_only(path)) << path;
  }
  for (std::string const path :
       {"/", "/health", "/files", "/initial", "/x/init", "/init/x", "/process.Process/Start"})
    EXPECT_FALSE(is_host_only(path)) << path;
}

std::string names_of(http::Headers const& headers) {
  std::string out;
  for (auto const& [name, value] : headers)
    out += name + "=" + value + ";";
  return out;
}

TEST(Heads, PlatformSecretsDoNotReachTheTenantsProgram) {
  http::RequestHead const head{.method = "GET",
                               .target = "/a%2Fb?c=%20",
                               .headers = {{"Host", "80-iabc.space.localhost"},
                                           {"X-Access-Token", "s"},
                                           {"e2b-sandbox-id", "iabc"},
                                           {"E2B-Sandbox-Port", "80"},
                                           {"X-API-KEY", "k"},
                                           {"E2b-Traffic-Access-Token", "t"},
                                           {"Authorization", "mine"},
                                           {"Cookie", "c"}}};
  auto const other = head_for_guest(head, secure_route(), 80);
  EXPECT_EQ(other.target, "/a%2Fb?c=%20");
  EXPECT_EQ(names_of(other.headers), "Host=80-iabc.space.localhost;Authorization=mine;Cookie=c;");
  auto const agent = head_for_guest(head, secure_route(), agent_port);
  EXPECT_EQ(agent.headers.get("X-Access-Token"), "s");
  EXPECT_FALSE(agent.headers.find("X-API-KEY"));
}

TEST(Heads, HopByHopFieldsStayOnTheirHop) {
  http::RequestHead const head{.method = "GET",
                               .target = "/",
                               .headers = {{"Host", "h"},
                                           {"Connection", "keep-alive, X-Mine , host"},
                                           {"X-Mine", "1"},
                                           {"Keep-Alive", "5"},
                                           {"TE", "trailers"},
                                           {"Upgrade", "h2c"},
                                           {"Proxy-Authorization", "p"},
                                           {"Expect", "100-continue"},
                                           {"X-Kept", "2"}}};
  EXPECT_EQ(names_of(head_for_guest(head, secure_route(), 80).headers), "Host=h;X-Kept=2;");
  http::RequestHead const upgrade{
      .method = "GET",
      .target = "/",
      .headers = {{"Host", "h"}, {"Connection", "keep-alive, Upgrade"}, {"Upgrade", "websocket"}}};
  EXPECT_EQ(names_of(head_for_guest(upgrade, secure_route(), 80).headers),
            "Host=h;Connection=Upgrade;Upgrade=websocket;");
}

TEST(Heads, ACookieStaysWithTheSandboxThatSetIt) {
  auto const kept = [](std::string cookie) {
    return std::string(
        head_for_visitor({.status = 200, .headers = {{"set-cookie", std::move(cookie)}}})
            .headers.get("Set-Cookie"));
  };
  for (auto const* domain : {"Domain=.space.example",
                             " domain=space.example",
                             "\tDOMAIN\t = space.example ",
                             "Domain",
                             " Domain=\"space.example\""}) {
    EXPECT_EQ(kept(std::string("a=1;") + domain), "a=1") << domain;
    EXPECT_EQ(kept(std::string("a=1; Path=/;") + domain + "; Secure"), "a=1; Path=/; Secure")
        << domain;
    EXPECT_EQ(kept(std::string("a=1;") + domain + ";" + domain), "a=1") << domain;
  }
  for (auto const* whole : {"Domain=1; Path=/", "a=Domain=x", "a=1; Path=/Domain=x", "", "a=1;;"})
    EXPECT_EQ(kept(whole), std::string_view(whole) == "a=1;;" ? "a=1;" : whole) << whole;
  http::ResponseHead two{.status = 200,
                         .headers = {{"Set-Cookie", "a=1; Domain=x"},
                                     {"X-Kept", "a; Domain=x"},
                                     {"SET-COOKIE", "b=2; Domain=x; HttpOnly"}}};
  std::string all;
  for (auto const& [name, value] : head_for_visitor(std::move(two)).headers)
    all += name + ": " + value + "\n";
  EXPECT_EQ(all, "Set-Cookie: a=1\nX-Kept: a; Domain=x\nSET-COOKIE: b=2; HttpOnly\n");
}

TEST(Heads, AMaskedHostMovesTheOriginal) {
  auto route = secure_route();
  route.mask_request_host = "localhost:${PORT}";
  http::RequestHead const head{
      .method = "GET",
      .target = "/",
      .headers = {{"Host", "80-iabc.space.localhost:7443"}, {"X-Forwarded-Host", "forged"}}};
  EXPECT_EQ(names_of(head_for_guest(head, route, 80).headers),
            "Host=localhost:80;X-Forwarded-Host=80-iabc.space.localhost:7443;");
  EXPECT_EQ(head_for_guest(head, route, agent_port).headers.get("Host"),
            "80-iabc.space.localhost:7443");
}

TEST(Heads, TheApiLearnsWhoTheVisitorIs) {
  http::RequestHead const head{
      .method = "GET",
      .target = "/",
      .headers = {{"Host", "h"}, {"X-Forwarded-For", "forged"}, {"X-API-KEY", "k"}}};
  EXPECT_EQ(names_of(head_for_api(head, "127.0.0.1:5050").headers),
            "Host=h;X-Forwarded-For=127.0.0.1;X-API-KEY=k;");
  EXPECT_EQ(head_for_api(head, "[::1]:5050").headers.get("X-Forwarded-For"), "::1");
}

TEST(Replies, ProgramsGetJsonAndPeopleAPage) {
  Reply reply;
  reply.status = 502;
  reply.message = "The sandbox is running but port is not open";
  reply.sandbox = "iabc";
  reply.about_sandbox = true;
  reply.port = 8080;
  http::RequestHead head{.method = "GET", .target = "/", .headers = {{"User-Agent", "python"}}};
  EXPECT_EQ(
      render(reply, head).body,
      R"({"sandboxId":"iabc","message":"The sandbox is running but port is not open","port":8080,"code":502})");
  head.headers.set("User-Agent", "Mozilla/5.0 (X11)");
  EXPECT_TRUE(
      render(reply, head)
          .body.contains("<h1>Bad Gateway</h1><p>The sandbox is running but port is not open</p>"));
  EXPECT_EQ(render(reply, head).status, 502);
  head.headers.set("Sec-Fetch-Mode", "navigate");
  EXPECT_TRUE(render(reply, head).body.starts_with("<!doctype html>"));
  head.headers.set("Sec-Fetch-Mode", "cors");
  EXPECT_TRUE(render(reply, head).body.starts_with("{"));
  head.headers.remove("Sec-Fetch-Mode");
  head.headers.set("Accept", "text/html, application/json");
  EXPECT_TRUE(render(reply, head).body.starts_with("{"));
  head.headers.remove("Accept");
  reply.message = "<script>";
  EXPECT_FALSE(render(reply, head).body.contains("<script>"));
}

TEST(Envelopes, KnowWhenAStreamStandsBetweenTwo) {
  std::string const start{"\0\0\0\0\x02{}", 7};
  for (std::size_t step = 1; step <= start.size(); ++step) {
    Envelopes envelopes;
    EXPECT_TRUE(envelopes.can_end());
    for (std::size_t at = 0; at < start.size(); at += step) {
      auto const piece = std::string_view(start).substr(at, step);
      envelopes.pass(piece);
      EXPECT_EQ(envelopes.can_end(), at + piece.size() == start.size());
    }
  }
  Envelopes envelopes;
  envelopes.pass(last_envelope("unavailable", "gone"));
  EXPECT_FALSE(envelopes.can_end());
  auto const last = last_envelope("unavailable", "gone");
  EXPECT_EQ(last.substr(0, 5), std::string("\x02\0\0\0\x31", 5));
  EXPECT_EQ(last.substr(5), R"({"error":{"code":"unavailable","message":"gone"}})");
}

TEST(Digest, IsSha256) {
  EXPECT_EQ(sha256_hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

}  // namespace
}  // namespace proxy
