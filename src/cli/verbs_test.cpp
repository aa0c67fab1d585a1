#include "cli/verbs.hpp"

#include "async/testing.hpp"
#include "http/server.hpp"
#include "wire/codec.hpp"

#include <deque>

#include <boost/asio/this_coro.hpp>
#include <gtest/gtest.h>

/// The verbs against an API that answers from a script: what they ask, what they print, how they
/// end.
namespace cli {
namespace {

struct Scripted {
  int status = 200;
  std::string body;
  std::string content_type = "application/json";
  bool cut = false;  // close without the end of the stream
};

class FakeApi : public http::Handler {
 public:
  std::deque<Scripted> answers;
  std::vector<std::string> asked;  // "METHOD target body"

  asio::awaitable<void> handle(http::Request& request, http::ResponseWriter& response) override {
    auto body = co_await request.body.read_all(1U << 20);
    asked.push_back(fmt::format(
        "{} {}{}{}", request.head.method, request.head.target, body->empty() ? "" : " ", *body));
    authorisation = request.head.headers.get("Authorization");
    idempotency_keys.emplace_back(request.head.headers.get("Idempotency-Key"));
    last_event_id = request.head.headers.get("Last-Event-ID");
    auto answer = answers.empty()
                      ? Scripted{500, R"({"code":"internal","message":"the script is over"})"}
                      : answers.front();
    if (!answers.empty()) answers.pop_front();
    if (answer.content_type != "text/event-stream") {
      (void)co_await response.send(
          {answer.status, {{"Content-Type", answer.content_type}}, answer.body});
      co_return;
    }
    (void)co_await response.begin({answer.status, {{"Content-Type", answer.content_type}}});
    (void)co_await response.write(answer.body);
    if (!answer.cut) (void)co_await response.finish();
  }

  std::string authorisation;
  std::vector<std::string> idempotency_keys;
  std::string last_event_id;
};

struct Outcome {
  int code = -1;
  std::string out, err;
};

/// Runs one verb against `fake`.
template <class Run> Outcome run_against(FakeApi& fake, Run run, bool as_json = false) {
  Outcome outcome;
  async::run_test([&]() -> asio::awaitable<void> {
    auto executor = co_await asio::this_coro::executor;
    http::Server server(executor, fake);
    auto listener = net::listen_tcp(executor, "127.0.0.1", 0);
    auto const port = (*listener)->port();
    server.listen(std::move(*listener));
    {
      Api api(executor, Target{ApiAddress{false, "127.0.0.1", port, ""}, base::Secret("e2b_key")});
      Output const out([&](std::string_view text) { outcome.out += text; },
                       [&](std::string_view text) { outcome.err += text; },
                       as_json,
                       false);
      auto running = run(Session{api, out});
      outcome.code = co_await std::move(running);
    }
    co_await server.close(std::chrono::milliseconds(100));
  });
  return outcome;
}

std::string const id = "i" + std::string(20, 'a');
std::string const sandbox_json =
    R"({"id":")" + id +
    R"(","state":"running","template":"base","build":"b1","vcpus":1,"memory_mib":512,"disk_mib":4096,"node":"node-1","metadata":{"task":"7"},"domain":"space.localhost:7443","created_at":"2026-11-30T15:00:00.000000Z","deadline_at":"2026-11-30T16:00:00.000000Z","timeline":[{"step":"admitted","at_ms":1.25}]})";

TEST(SandboxCreate, PrintsTheIdAndAsksForWhatWasSaid) {
  FakeApi fake;
  fake.answers = {{201, R"({"sandbox":)" + sandbox_json + R"(,"operation":{"id":"o1"}})"}};
  CreateOptions options;
  options.memory = "1GiB";
  options.timeout = "30m";
  options.metadata = {"task=7"};
  auto const outcome =
      run_against(fake, [&](Session session) { return sandbox_create(session, options); });
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(outcome.out, id + "\n");
  EXPECT_EQ(outcome.err, "");
  EXPECT_EQ(
      fake.asked,
      (std::vector<std::string>{
          R"(POST /v1/sandboxes?wait=300 {"memory_mib":1024,"timeout_s":1800,"metadata":{"task":"7"}})"}));
  EXPECT_EQ(fake.authorisation, "Bearer e2b_key");
}

TEST(SandboxCreate, AChosenIdempotencyKeyIsSentOnceAndOthersAreFresh) {
  FakeApi fake;
  auto const made = R"({"sandbox":)" + sandbox_json + R"(,"operation":{"id":"o1"}})";
  fake.answers = {{201, made}, {201, made}};
  auto const outcome = run_against(fake, [](Session session) -> asio::awaitable<int> {
    session.api.use_idempotency_key("mine");
    auto const first = co_await sandbox_create(session, {});
    auto const second = co_await sandbox_create(session, {});
    co_return first + second;
  });
  EXPECT_EQ(outcome.code, 0);
  ASSERT_EQ(fake.idempotency_keys.size(), 2U);
  EXPECT_EQ(fake.idempotency_keys[0], "mine");
  EXPECT_EQ(fake.idempotency_keys[1].size(), 32U);
}

TEST(SandboxCreate, OneThatDoesNotRunInTimeIsNoSuccess) {
  FakeApi fake;
  fake.answers = {{202, R"({"sandbox":{"id":"x","state":"creating"},"operation":{"id":"o1"}})"}};
  auto const outcome =
      run_against(fake, [](Session session) { return sandbox_create(session, {}); });
  EXPECT_EQ(outcome.code, 124);
  EXPECT_NE(outcome.err.find("space operation show o1"), std::string::npos);
}

TEST(SandboxCreate, ABadUnitAsksTheServerNothing) {
  FakeApi fake;
  CreateOptions options;
  options.memory = "lots";
  auto const outcome =
      run_against(fake, [&](Session session) { return sandbox_create(session, options); });
  EXPECT_EQ(outcome.code, 2);
  EXPECT_TRUE(fake.asked.empty());
  EXPECT_NE(outcome.err.find("512MiB"), std::string::npos);
}

TEST(SandboxCreate, AFullHostSaysWhatToDo) {
  FakeApi fake;
  fake.answers = {
      {429, R"({"code":"exhausted","message":"no host has room for 512 MiB","request_id":"r"})"}};
  auto const outcome =
      run_against(fake, [](Session session) { return sandbox_create(session, {}); });
  EXPECT_EQ(outcome.code, 1);
  EXPECT_EQ(outcome.err,
            "space: no host has room for 512 MiB\nEnd what is not needed: space sandbox list; "
            "space sandbox rm ID\n");
}

TEST(SandboxList, FollowsPagesAndPrintsOneLineEach) {
  FakeApi fake;
  fake.answers = {
      {200, R"({"sandboxes":[)" + sandbox_json + R"(],"next_cursor":"c/1"})"},
      {200, R"({"sandboxes":[{"id":"second","state":"failed","end_reason":"guest_panic"}]})"}};
  ListOptions options;
  options.ids_only = true;
  auto const outcome =
      run_against(fake, [&](Session session) { return sandbox_list(session, options); });
  EXPECT_EQ(outcome.out, id + "\nsecond\n");
  EXPECT_EQ(fake.asked.at(1), "GET /v1/sandboxes?limit=100&cursor=c%2F1");
}

TEST(SandboxList, AServerThatRepeatsItsCursorDoesNotHangUs) {
  FakeApi fake;
  for (int i = 0; i < 5; ++i)
    fake.answers.push_back({200, R"({"sandboxes":[],"next_cursor":"same"})"});
  auto const outcome = run_against(fake, [](Session session) { return sandbox_list(session, {}); });
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(fake.asked.size(), 2U);
}

TEST(SandboxShow, IsATableForPeopleAndTheAnswerItselfAsJson) {
  FakeApi fake;
  fake.answers = {{200, sandbox_json}, {200, sandbox_json}};
  auto const table = run_against(fake, [](Session session) { return sandbox_show(session, id); });
  EXPECT_EQ(table.code, 0);
  EXPECT_NE(table.out.find("size      1 vCPU, 512 MiB memory, 4096 MiB disk\n"), std::string::npos)
      << table.out;
  EXPECT_NE(table.out.find("metadata  task=7\n"), std::string::npos);
  EXPECT_NE(table.out.find("start            1.2 ms  admitted\n"), std::string::npos) << table.out;
  auto const document =
      run_against(fake, [](Session session) { return sandbox_show(session, id); }, true);
  EXPECT_EQ(document.out, wire::to_text(wire::parse_json(sandbox_json).value()) + "\n");
}

TEST(SandboxRemove, GoesOnAfterAFailureAndTellsIt) {
  FakeApi fake;
  fake.answers = {{404, R"({"code":"not_found","message":"there is no sandbox x"})"},
                  {200, R"({"sandbox":{},"operation":{}})"}};
  auto const outcome = run_against(
      fake, [](Session session) { return sandbox_remove(session, {"a/b", "y"}, false); });
  EXPECT_EQ(outcome.code, 3);
  EXPECT_EQ(outcome.out, "y\n");
  EXPECT_EQ(fake.asked.at(0), "DELETE /v1/sandboxes/a%2Fb?wait=60");
}

std::string event(std::string_view number, std::string_view type, std::string_view data) {
  return fmt::format("id: {}\nevent: {}\ndata: {}\n\n", number, type, data);
}

TEST(Exec, StreamsBothOutputsAndReturnsTheCommandsCode) {
  FakeApi fake;
  fake.answers = {
      {201, R"({"id":"c1","pid":7,"state":"running"})"},
      {200,
       event("0", "start", R"({"pid":7})") + event("3", "stdout", R"({"data":"b3V0"})") +
           event("7", "stderr", R"({"data":"ZXJyCg=="})") +
           event(
               "8",
               "end",
               R"({"exit_code":3,"exited":true,"status":"exit status 3","error":"exit status 3"})"),
       "text/event-stream"}};
  ExecOptions options;
  options.sandbox = id;
  options.arguments = {"sh", "-c", "exit 3"};
  options.env = {"A=1"};
  auto const outcome = run_against(fake, [&](Session session) { return exec(session, options); });
  EXPECT_EQ(outcome.code, 3);
  EXPECT_EQ(outcome.out, "out");
  EXPECT_EQ(outcome.err, "err\n");
  EXPECT_NE(fake.asked.at(0).find(R"("argv":["sh","-c","exit 3"],"env":{"A":"1"})"),
            std::string::npos)
      << fake.asked.at(0);
}

TEST(Exec, AProgramThatCannotBeStartedHasTheCodeOfShells) {
  struct Case {
    char const* message;
    int code;
  };

  for (auto const& [message, code] :
       {Case{R"(error starting process: exec: \"x\": executable file not found in $PATH)", 127},
        Case{"error starting process: /etc/passwd: Permission denied", 126},
        Case{"cwd '/nope' does not exist", 2}}) {
    FakeApi fake;
    fake.answers = {{400, fmt::format(R"({{"code":"invalid_argument","message":"{}"}})", message)}};
    ExecOptions options;
    options.sandbox = id;
    options.arguments = {"x"};
    auto const outcome = run_against(fake, [&](Session session) { return exec(session, options); });
    EXPECT_EQ(outcome.code, code) << message;
    EXPECT_TRUE(outcome.err.starts_with("space: ")) << outcome.err;
  }
}

TEST(Exec, WithJsonEveryPieceIsALine) {
  FakeApi fake;
  fake.answers = {
      {201, R"({"id":"c1","pid":7,"state":"running"})"},
      {200,
       event("3", "stdout", R"({"data":"b3V0Cg=="})") + event("7", "stderr", R"({"data":"/w=="})") +
           event("8", "end", R"({"exit_code":3,"status":"exit status 3"})"),
       "text/event-stream"}};
  ExecOptions options;
  options.sandbox = id;
  options.arguments = {"x"};
  auto const outcome =
      run_against(fake, [&](Session session) { return exec(session, options); }, true);
  EXPECT_EQ(outcome.code, 3);
  EXPECT_EQ(outcome.out,
            "{\"stream\":\"stdout\",\"data\":\"out\\n\"}\n"
            "{\"stream\":\"stderr\",\"data_base64\":\"/w==\"}\n"
            "{\"exit_code\":3}\n");
  EXPECT_EQ(outcome.err, "");
}

TEST(Exec, AStreamThatIsCutGoesOnWhereItWas) {
  FakeApi fake;
  fake.answers = {
      {201, R"({"id":"c1","pid":7,"state":"running"})"},
      {200, event("3", "stdout", R"({"data":"b25l"})"), "text/event-stream"},
      {503, R"({"code":"unavailable","message":"starting"})"},
      {200,
       event("6", "stdout", R"({"data":"dHdv"})") +
           event("7", "end", R"({"exit_code":0,"exited":true,"status":"exit status 0"})"),
       "text/event-stream"}};
  ExecOptions options;
  options.sandbox = id;
  options.arguments = {"x"};
  auto const outcome = run_against(fake, [&](Session session) { return exec(session, options); });
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(outcome.out, "onetwo");
  EXPECT_EQ(fake.last_event_id, "3");
}

TEST(Exec, ASandboxThatIsGoneEndsItWithItsError) {
  FakeApi fake;
  fake.answers = {{201, R"({"id":"c1","pid":7,"state":"running"})"},
                  {200, event("3", "stdout", R"({"data":"b25l"})"), "text/event-stream"},
                  {404, R"({"code":"not_found","message":"the sandbox was deleted"})"}};
  ExecOptions options;
  options.sandbox = id;
  options.arguments = {"x"};
  auto const outcome = run_against(fake, [&](Session session) { return exec(session, options); });
  EXPECT_EQ(outcome.code, 3);
  EXPECT_NE(outcome.err.find("the sandbox was deleted"), std::string::npos);
}

TEST(Events, StopAfterTheAskedCountAndStartWhereTold) {
  FakeApi fake;
  fake.answers = {{200,
                   event("1-2",
                         "sandbox.running",
                         R"({"id":"1-2","type":"sandbox.running","sandbox":"s","at":"T"})") +
                       event("1-3", "x", "{}"),
                   "text/event-stream"}};
  EventOptions options;
  options.from = "0-0";
  options.count = 1;
  auto const outcome =
      run_against(fake, [&](Session session) { return events(session, options); }, true);
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(outcome.out,
            "{\"id\":\"1-2\",\"type\":\"sandbox.running\",\"sandbox\":\"s\",\"at\":\"T\"}\n");
  EXPECT_EQ(fake.last_event_id, "0-0");
}

TEST(KeyCreate, TheSecretIsTheOnlyDataOnStdout) {
  FakeApi fake;
  fake.answers = {{201, R"({"id":"k1","key":"e2b_secret","name":"ci"})"}};
  KeyOptions options;
  options.name = "ci";
  options.expires_in = "1d";
  auto const outcome =
      run_against(fake, [&](Session session) { return key_create(session, options); });
  EXPECT_EQ(outcome.out, "e2b_secret\n");
  EXPECT_NE(outcome.err.find("space key revoke k1"), std::string::npos);
  EXPECT_EQ(fake.asked.at(0), R"(POST /v1/keys {"name":"ci","expires_in_s":86400})");
}

TEST(NodeList, OneThatIsBeingDrainedIsNotCalledReady) {
  FakeApi fake;
  fake.answers = {{200,
                   R"({"nodes":[{"name":"node-1","state":"ready","draining":true},)"
                   R"({"name":"node-2","state":"ready","draining":false}]})"}};
  auto const outcome = run_against(fake, [](Session session) { return node_list(session); });
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("node-1  draining"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("node-2  ready"), std::string::npos) << outcome.out;
}

TEST(OperationShow, AFailedOneHasItsOwnExitCode) {
  FakeApi fake;
  fake.answers = {
      {200,
       R"({"id":"o1","kind":"create","state":"failed","error":{"code":"unavailable","message":"the host went away"}})"}};
  auto const outcome =
      run_against(fake, [](Session session) { return operation_show(session, "o1", "10s"); });
  EXPECT_EQ(outcome.code, 5);
  EXPECT_NE(outcome.err.find("the host went away"), std::string::npos);
  EXPECT_EQ(fake.asked.at(0), "GET /v1/operations/o1?wait=10");
}

TEST(AnApiThatIsNotThere, IsUnavailableAndNamesTheDoctor) {
  Outcome outcome;
  async::run_test([&]() -> asio::awaitable<void> {
    auto executor = co_await asio::this_coro::executor;
    auto listener = net::listen_tcp(executor, "127.0.0.1", 0);
    auto const port = (*listener)->port();
    listener->reset();  // nobody listens there now
    Api api(executor, Target{ApiAddress{false, "127.0.0.1", port, ""}, base::Secret("k")});
    Output const out(
        [](std::string_view) {}, [&](std::string_view text) { outcome.err += text; }, false, false);
    outcome.code = co_await sandbox_list(Session{api, out}, {});
  });
  EXPECT_EQ(outcome.code, 5);
  EXPECT_NE(outcome.err.find("space doctor"), std::string::npos) << outcome.err;
}

}  // namespace
}  // namespace cli
