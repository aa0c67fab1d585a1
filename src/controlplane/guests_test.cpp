// Commands and files, also with guests that lie.
#include "controlplane/testing.hpp"

#include <set>

namespace controlplane {
namespace {

using namespace std::chrono_literals;
using namespace testing;
using ::testing::HasSubstr;

TEST(Commands, StartWaitAndCollect) {
  with_api([](Bench& bench) -> asio::awaitable<void> {
    auto const id = co_await bench.sandbox();
    auto const path = "/v1/sandboxes/" + id + "/commands";
    bench.guest.frames = {
        R"({"event":{"data":{"stdout":"NDIK"}}})",
        R"({"event":{"keepalive":{}}})",
        R"({"event":{"data":{"stderr":"//8="}}})",
        R"({"event":{"end":{"exitCode":3,"exited":true,"status":"exit status 3","error":"exit status 3"}}})"};
    auto const done = co_await bench.ask(
        "POST",
        path + "?wait=10",
        R"~({"argv":["python3","-c","print(6*7)"],"env":{"A":"b"},"cwd":"/tmp","user":"root","timeout_s":1.5})~");
    EXPECT_EQ(done.status, 201) << done.text;
    EXPECT_EQ(done.str("state"), "ended");
    EXPECT_EQ(done["exit_code"], 3);
    EXPECT_EQ(done.str("stdout"), "42\n");
    EXPECT_EQ(done.str("stderr"), "\xEF\xBF\xBD\xEF\xBF\xBD");
    EXPECT_TRUE(base::is_short_id('c', done.str("id")));
    auto const& [method, message] = bench.guest.calls.back();
    EXPECT_EQ(method, "process.Process/Start");
    EXPECT_EQ(message.at("process").at("cmd"), "python3");
    EXPECT_EQ(message.at("process").at("cwd"), "/tmp");
    EXPECT_EQ(message.at("stdin"), false);
    EXPECT_EQ(message.at("tag"), json::string(done.str("id")));
    EXPECT_EQ(bench.guest.headers.back().get("connect-timeout-ms"), "1500");
    EXPECT_EQ(bench.guest.headers.back().get("authorization"), "Basic cm9vdDo=");
    auto const started = co_await bench.ask("POST", path, R"({"shell":"sleep 9","stdin":true})");
    EXPECT_EQ(started.status, 201);
    EXPECT_EQ(started.str("state"), "running");
    EXPECT_EQ(bench.guest.calls.back().second.at("process").at("args").at(2), "sleep 9");
    auto const pty =
        co_await bench.ask("POST", path, R"({"argv":["/bin/bash"],"pty":{"cols":80,"rows":24}})");
    EXPECT_EQ(pty.status, 201);
    EXPECT_EQ(bench.guest.calls.back().second.at("pty").at("size").at("cols"), 80);
    for (auto const* wrong : {"{}",
                              R"({"argv":[],"shell":"x"})",
                              R"({"argv":[]})",
                              R"({"argv":[""]})",
                              R"({"shell":"a\u0000b"})",
                              R"({"argv":["x"],"timeout_s":-1})",
                              R"({"argv":["x"],"user":"a:b"})",
                              R"({"argv":["x"],"pty":{"cols":0,"rows":1}})",
                              R"({"argv":["x"],"stdin":1})",
                              R"({"argv":["x"],"stdout":1})"}) {
      auto const bad = co_await bench.ask("POST", path, wrong);
      EXPECT_EQ(bad.status, 400) << wrong;
    }
  });
}

TEST(Commands, OneWhoseAnswerWasLostIsNotStartedOnceMoreByARepeat) {
  with_api([](Bench& bench) -> asio::awaitable<void> {
    auto const id = co_await bench.sandbox();
    Bench::Ask ask;
    ask.method = "POST";
    ask.target = "/v1/sandboxes/" + id + "/commands?wait=10";
    ask.body = R"({"argv":["/bin/pay"]})";
    ask.headers.add("Idempotency-Key", "once");
    bench.guest.cut = true;
    auto const lost = co_await bench.ask(ask);
    EXPECT_EQ(lost.status, 503) << lost.text;
    auto const starts = bench.guest.calls.size();
    bench.guest.cut = false;
    auto const again = co_await bench.ask(ask);
    EXPECT_EQ(again.status, 409);
    EXPECT_THAT(again.str("message"), HasSubstr("outcome is unknown"));
    EXPECT_EQ(bench.guest.calls.size(), starts) << "it was started again";
    // What was refused before it began may be asked again.
    ask.headers.set("Idempotency-Key", "refused");
    bench.guest.end_error = R"({"code":"resource_exhausted","message":"512 commands run already"})";
    bench.guest.raw = frame(2, "{\"error\":" + bench.guest.end_error + "}");
    auto const refused = co_await bench.ask(ask);
    EXPECT_EQ(refused.status, 429) << refused.text;
    auto const repeated = co_await bench.ask(ask);
    EXPECT_EQ(repeated.status, 429);
    EXPECT_EQ(bench.guest.calls.size(), starts + 2);
  });
}

TEST(Commands, AGuestMayLie) {
  with_api([](Bench& bench) -> asio::awaitable<void> {
    auto const id = co_await bench.sandbox();
    auto const path = "/v1/sandboxes/" + id + "/commands";
    struct Lie {
      char const* what;
      std::string raw;
    };
    using testing::frame;
    auto const start = frame(0, R"({"event":{"start":{"pid":77}}})");
    for (auto const& lie :
         {Lie{"no json", frame(0, "nonsense")},
          Lie{"no start", frame(0, R"({"event":{"end":{}}})")},
          Lie{"pid 0", frame(0, R"({"event":{"start":{"pid":0}}})")},
          Lie{"huge frame", std::string("\0\x7f\xff\xff\xff", 5)},
          Lie{"odd flags", frame(1, "{}")},
          Lie{"no base64", start + frame(0, R"({"event":{"data":{"stdout":"***"}}})")},
          Lie{"an array", frame(0, "[]")},
          Lie{"deep", start + frame(0, std::string(400, '['))}}) {
      bench.guest.raw = lie.raw;
      auto const answer = co_await bench.ask("POST", path + "?wait=5", R"({"argv":["x"]})");
      EXPECT_EQ(answer.status, 503) << lie.what << ": " << answer.text;
    }
    bench.guest.raw.clear();
    bench.guest.end_error =
        R"({"code":"invalid_argument","message":"cwd '/nope' does not exist\u0007<script>"})";
    bench.guest.raw = frame(2, "{\"error\":" + bench.guest.end_error + "}");
    auto const refused = co_await bench.ask("POST", path, R"({"argv":["x"],"cwd":"/nope"})");
    EXPECT_EQ(refused.status, 400);
    EXPECT_EQ(refused.message(), "cwd '/nope' does not exist <script>");
  });
}

TEST(Commands, OutputAsEventsWithReplay) {
  with_api([](Bench& bench) -> asio::awaitable<void> {
    auto const id = co_await bench.sandbox();
    auto const path = "/v1/sandboxes/" + id + "/commands/77/output";
    bench.guest.frames = {R"({"event":{"gap":{"bytes":5}}})",
                          R"({"event":{"data":{"stdout":"aGVsbG8=","offset":5}}})",
                          R"({"event":{"end":{"exited":true,"status":"exit status 0"}}})"};
    auto const text = co_await read_stream(bench, path, {}, [](std::string const& t) {
      return t.find("event: end") != std::string::npos && t.ends_with("\n\n");
    });
    EXPECT_THAT(text, HasSubstr("event: start\ndata: {\"pid\":77}\n"));
    EXPECT_THAT(text, HasSubstr("event: gap\ndata: {\"bytes\":5}\n"));
    EXPECT_THAT(text, HasSubstr("id: 10\nevent: stdout\ndata: {\"data\":\"aGVsbG8=\"}\n"));
    EXPECT_EQ(bench.guest.headers.back().get("x-space-replay"), "0");
    auto const again =
        co_await read_stream(bench, path, {{"Last-Event-ID", "10"}}, [](std::string const& t) {
          return t.find("event: end") != std::string::npos;
        });
    EXPECT_EQ(bench.guest.headers.back().get("x-space-replay"), "10");
    // The sandbox ends under the stream: the reader is told why.
    bench.guest.frames = {R"({"event":{"data":{"stdout":"aGVsbG8=","offset":0}}})"};
    bench.guest.cut = true;
    auto const row = taken(co_await bench.api->store().sandboxes.find_live(id, soon()));
    store::Change change;
    change.id = row->id;
    change.from = domain::SandboxState::running;
    change.event = domain::SandboxEvent::end;
    change.reason = domain::EndReason::deadline;
    async::TaskGroup group(co_await asio::this_coro::executor);
    auto end = [&]() -> asio::awaitable<void> {
      co_await async::sleep_for(300ms);
      auto changed = co_await bench.api->store().sandboxes.apply(change, soon());
      EXPECT_TRUE(changed && changed->applied);
    };
    group.spawn("end", end());
    auto const cut = co_await read_stream(bench, path, {}, [](std::string const& t) {
      return t.find("event: error") != std::string::npos && t.ends_with("\n\n");
    });
    co_await group.join();
    EXPECT_THAT(cut, HasSubstr("the sandbox ended: its timeout was over"));
  });
}

TEST(Commands, InputSignalsAndLists) {
  with_api([](Bench& bench) -> asio::awaitable<void> {
    auto const id = co_await bench.sandbox();
    auto const path = "/v1/sandboxes/" + id + "/commands";
    auto const tag = base::make_short_id('c');
    auto const command = path + "/" + tag;
    auto const written = co_await bench.ask("POST", command + "/stdin", std::string("x\0\xff", 3));
    EXPECT_EQ(written.status, 204) << written.text;
    EXPECT_EQ(bench.guest.calls.back().second.at("input").at("stdin"), "eAD/");
    EXPECT_EQ(bench.guest.calls.back().second.at("process").at("tag"), json::string(tag));
    bench.guest.terminal = true;
    auto const typed = co_await bench.ask("POST", path + "/77/stdin", "ls\n");
    EXPECT_EQ(typed.status, 204) << typed.text;
    EXPECT_EQ(bench.guest.calls.back().second.at("input").at("pty"), "bHMK");
    EXPECT_EQ(bench.guest.calls.back().second.at("process").at("pid"), 77);
    auto const closed = co_await bench.ask("DELETE", command + "/stdin");
    EXPECT_EQ(closed.status, 204);
    EXPECT_EQ(bench.guest.calls.back().first, "process.Process/CloseStdin");
    auto const killed = co_await bench.ask("POST", command + "/signal", R"({"signal":"KILL"})");
    EXPECT_EQ(killed.status, 204);
    EXPECT_EQ(bench.guest.calls.back().second.at("signal"), "SIGNAL_SIGKILL");
    auto const bad = co_await bench.ask("POST", command + "/signal", R"({"signal":"HUP"})");
    EXPECT_EQ(bad.status, 400);
    auto const resized =
        co_await bench.ask("POST", command + "/resize", R"({"cols":100,"rows":30})");
    EXPECT_EQ(resized.status, 204);
    bench.guest.unary["process.Process/List"] = fmt::format(
        R"({{"processes":[{{"pid":77,"tag":"{}","config":{{"cmd":"sleep","args":["9"]}}}},{{"pid":78,"config":{{"cmd":"x"}}}},{{"pid":"no"}},7]}})",
        tag);
    auto const list = co_await bench.ask("GET", path);
    EXPECT_EQ(list["commands"].as_array().size(), 2u) << list.text;
    auto const one = co_await bench.ask("GET", command);
    EXPECT_EQ(one["pid"], 77);
    bench.guest.frames = {
        R"({"event":{"end":{"exitCode":-1,"status":"signal: killed","error":"signal: killed"}}})"};
    auto const ended = co_await bench.ask("GET", path + "/99");
    EXPECT_EQ(ended.str("state"), "ended");
    EXPECT_EQ(ended["exit_code"], -1);
    auto const unknown = co_await bench.ask("GET", path + "/nope");
    EXPECT_EQ(unknown.status, 404);
    bench.guest.unary["process.Process/SendSignal"] =
        R"({"code":"not_found","message":"process with pid 5 not found"})";
    auto const gone = co_await bench.ask("POST", path + "/5/signal", R"({"signal":"TERM"})");
    EXPECT_EQ(gone.status, 404);
  });
}

TEST(Files, ContentGoesBothWays) {
  with_api([](Bench& bench) -> asio::awaitable<void> {
    auto const id = co_await bench.sandbox();
    auto const path = "/v1/sandboxes/" + id + "/files";
    std::string big(3 << 20, '\0');
    for (std::size_t i = 0; i < big.size(); ++i)
      big[i] = static_cast<char>(i * 31);
    auto const written = co_await bench.ask("PUT", path + "?path=%2Fhome%2Fuser%2Fa%20b", big);
    EXPECT_EQ(written.status, 200) << written.text;
    EXPECT_EQ(written.str("path"), "/home/user/a b");
    EXPECT_EQ(bench.guest.files["/home/user/a b"], big);
    auto const read = co_await bench.ask("GET", path + "?path=%2Fhome%2Fuser%2Fa%20b");
    EXPECT_EQ(read.status, 200);
    EXPECT_EQ(read.text, big);
    EXPECT_EQ(read.headers.get("content-type"), "application/octet-stream")
        << "never a type that a browser would run";
    EXPECT_EQ(read.headers.get("x-content-type-options"), "nosniff");
    auto const head = co_await bench.head(path + "?path=%2Fhome%2Fuser%2Fa%20b");
    EXPECT_EQ(head.status, 200);
    EXPECT_EQ(head.headers.get("content-length"), std::to_string(big.size()));
    EXPECT_TRUE(head.body.empty());
    auto const missing = co_await bench.ask("GET", path + "?path=nope");
    EXPECT_EQ(missing.status, 404);
    auto const no_head = co_await bench.head(path + "?path=nope");
    EXPECT_EQ(no_head.status, 404);
    for (auto const* wrong : {"", "?path=", "?path=%00", "?path=a&user=x%3Ay", "?path=a&other=1"}) {
      auto const bad = co_await bench.ask("GET", path + wrong);
      EXPECT_EQ(bad.status, 400) << wrong;
    }
    bench.guest.unary["filesystem.Filesystem/Stat"] =
        R"({"entry":{"name":"a","path":"/home/user/a","type":"FILE_TYPE_FILE","size":"12","mode":420,"permissions":"-rw-r--r--","owner":"user","group":"user","modifiedTime":"2026-01-01T00:00:00Z"}})";
    auto const stat = co_await bench.ask("GET", path + "/stat?path=a");
    EXPECT_EQ(stat["size"], 12);
    bench.guest.unary["filesystem.Filesystem/ListDir"] =
        R"({"entries":[{"name":"d","path":"/d","type":"FILE_TYPE_DIRECTORY"},{"nonsense":1},"x"]})";
    auto const list = co_await bench.ask("GET", path + "/list?path=.&depth=2");
    EXPECT_EQ(list["entries"].as_array().size(), 1u);
    EXPECT_EQ(bench.guest.calls.back().second.at("depth"), 2);
    bench.guest.unary["filesystem.Filesystem/MakeDir"] =
        R"({"entry":{"name":"d","path":"/d","type":"FILE_TYPE_DIRECTORY"}})";
    auto const made = co_await bench.ask("POST", path + "/mkdir", R"({"path":"/d"})");
    EXPECT_EQ(made.status, 201);
    bench.guest.unary["filesystem.Filesystem/MakeDir"] =
        R"({"code":"already_exists","message":"it exists"})";
    auto const exists = co_await bench.ask("POST", path + "/mkdir", R"({"path":"/d"})");
    EXPECT_EQ(exists.status, 409);
    bench.guest.unary["filesystem.Filesystem/Move"] =
        R"({"entry":{"name":"e","path":"/e","type":"FILE_TYPE_SYMLINK","symlinkTarget":"/x"}})";
    auto const moved =
        co_await bench.ask("POST", path + "/move", R"({"source":"/d","destination":"/e"})");
    EXPECT_EQ(moved.str("symlink_target"), "/x");
    auto const removed = co_await bench.ask("DELETE", path + "?path=%2Fe");
    EXPECT_EQ(removed.status, 204);
    bench.guest.unary["filesystem.Filesystem/Stat"] = R"({"entry":{"name":7}})";
    auto const lie = co_await bench.ask("GET", path + "/stat?path=a");
    EXPECT_EQ(lie.status, 503);
  });
}

TEST(Files, PermissionBitsGoToTheGuestAndNothingElseDoes) {
  with_api([](Bench& bench) -> asio::awaitable<void> {
    auto const id = co_await bench.sandbox();
    auto const path = "/v1/sandboxes/" + id + "/files";
    auto const written = co_await bench.ask("PUT", path + "?path=%2Fa&mode=493", "x");
    EXPECT_EQ(written.status, 200) << written.text;
    EXPECT_EQ(bench.guest.modes["/a"], "493");
    auto const plain = co_await bench.ask("PUT", path + "?path=%2Fb", "x");
    EXPECT_EQ(plain.status, 200);
    EXPECT_FALSE(bench.guest.modes.contains("/b"));
    for (auto const* wrong : {"512", "2541", "-1", "", "0o755", "4294967296"}) {
      auto const bad = co_await bench.ask("PUT", path + "?path=%2Fc&mode=" + wrong, "x");
      EXPECT_EQ(bad.status, 400) << wrong;
    }
    EXPECT_FALSE(bench.guest.files.contains("/c"));
    bench.guest.unary["filesystem.Filesystem/MakeDir"] =
        R"({"entry":{"name":"d","path":"/d","type":"FILE_TYPE_DIRECTORY"}})";
    auto const made = co_await bench.ask("POST", path + "/mkdir", R"({"path":"/d","mode":448})");
    EXPECT_EQ(made.status, 201);
    EXPECT_EQ(bench.guest.calls.back().second.at("mode"), 448);
    auto const bad = co_await bench.ask("POST", path + "/mkdir", R"({"path":"/d","mode":512})");
    EXPECT_EQ(bad.status, 400);
    EXPECT_THAT(bad.message(), HasSubstr("mode"));
  });
}

TEST(Commands, ASandboxThatDoesNotRunIsAConflict) {
  with_api([](Bench& bench) -> asio::awaitable<void> {
    bench.worker.start_delay = 500ms;
    auto const made = co_await bench.ask("POST", "/v1/sandboxes");
    auto const id = std::string(made["sandbox"].as_object().at("id").as_string());
    auto const early =
        co_await bench.ask("POST", "/v1/sandboxes/" + id + "/commands", R"({"argv":["x"]})");
    EXPECT_EQ(early.status, 409);
    EXPECT_THAT(early.message(), HasSubstr("creating"));
    auto const none = co_await bench.ask(
        "POST", "/v1/sandboxes/i00000000000000000000/commands", R"({"argv":["x"]})");
    EXPECT_EQ(none.status, 404);
  });
}

TEST(GuestText, IsMadeHarmless) {
  EXPECT_EQ(printable("a\x01\x1b[31mb\n", 100), "a  [31mb ");
  EXPECT_EQ(printable("tést", 2), "t");
  EXPECT_EQ(printable("\xff\xfe", 100), "??");
  EXPECT_EQ(printable("abc", 2), "ab");
}

}  // namespace
}  // namespace controlplane
