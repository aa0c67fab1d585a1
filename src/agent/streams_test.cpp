#include "agent/testing.hpp"

#include <sys/stat.h>

#include <csignal>

#include <fcntl.h>

/// Input, terminals, and several readers of one command.
namespace agent {
namespace {

using testing::Guest;
using testing::with_guest;
using namespace std::chrono_literals;

std::string input_request(std::int64_t pid, std::string_view kind, std::string_view bytes) {
  return fmt::format(
      R"({{{},"input":{{"{}":"{}"}}}})", testing::selector(pid), kind, base::base64_of(bytes));
}

asio::awaitable<void> kill(Guest& guest, std::int64_t pid) {
  auto const answer = co_await guest.call(
      "SendSignal", "{" + testing::selector(pid) + R"(,"signal":"SIGNAL_SIGKILL"})");
  EXPECT_EQ(answer.status, 200) << answer.body;
}

/// Reads until the bytes of `key` hold `wanted`.
asio::awaitable<std::string> read_until(testing::StreamCall& stream,
                                        std::string key,
                                        std::string wanted) {
  std::string seen;
  while (seen.find(wanted) == std::string::npos) {
    auto const message = co_await stream.next();
    if (!message) break;
    auto const* data = message->at("event").as_object().if_contains("data");
    auto const* text = data ? data->as_object().if_contains(key) : nullptr;
    if (text) seen += base::base64_decoded(std::string_view(text->as_string())).value();
  }
  EXPECT_NE(seen.find(wanted), std::string::npos) << seen;
  co_return seen;
}

TEST(ProcessInput, ReachesTheCommandInOrderAndCloseEndsIt) {
  with_guest([](Guest& guest) -> asio::awaitable<void> {
    auto const stream = co_await guest.start("cat", "");  // stdin absent: there is one
    auto const begun = co_await stream->next();
    auto const pid = testing::pid_of(*begun);
    for (int i = 0; i < 10; ++i) {
      auto const sent = co_await guest.call(
          "SendInput", input_request(pid, "stdin", fmt::format("line {}\n", i)));
      EXPECT_EQ(sent.body, "{}");
    }
    auto const empty = co_await guest.call("SendInput", input_request(pid, "stdin", ""));
    EXPECT_EQ(empty.body, "{}");
    auto const closed = co_await guest.call("CloseStdin", "{" + testing::selector(pid) + "}");
    EXPECT_EQ(closed.body, "{}");
    auto const events = co_await stream->rest();
    EXPECT_EQ(events.bytes("stdout"),
              "line 0\nline 1\nline 2\nline 3\nline 4\nline 5\nline 6\nline 7\nline 8\nline 9\n");
    EXPECT_EQ(events.last().at("status").as_string(), "exit status 0");
  });
}

TEST(ProcessInput, WithoutOneTheCommandReadsTheEndAtOnce) {
  with_guest([](Guest& guest) -> asio::awaitable<void> {
    auto const events = co_await guest.run("cat; echo done");
    EXPECT_EQ(events.bytes("stdout"), "done\n");
    auto const stream = co_await guest.start("sleep 20");
    auto const begun = co_await stream->next();
    auto const pid = testing::pid_of(*begun);
    auto const refused = co_await guest.call("SendInput", input_request(pid, "stdin", "x"));
    EXPECT_EQ(refused.status, 400);
    EXPECT_EQ(refused.json().at("code").as_string(), "failed_precondition");
    auto const wrong = co_await guest.call("SendInput", input_request(pid, "pty", "x"));
    EXPECT_EQ(wrong.status, 400);
    auto const resized = co_await guest.call(
        "Update", "{" + testing::selector(pid) + R"(,"pty":{"size":{"cols":1,"rows":1}}})");
    EXPECT_EQ(resized.status, 400);
    co_await kill(guest, pid);
  });
}

TEST(ProcessInput, OneThatIsNotReadWaitsUntilTheDeadlineAndHoldsNobodyElseUp) {
  with_guest([](Guest& guest) -> asio::awaitable<void> {
    auto const stream = co_await guest.start("exec sleep 20", "");
    auto const begun = co_await stream->next();
    auto const pid = testing::pid_of(*begun);
    auto const late = co_await guest.call("SendInput",
                                          input_request(pid, "stdin", std::string(300'000, 'x')),
                                          {{"connect-timeout-ms", "200"}});
    EXPECT_EQ(late.status, 504);
    EXPECT_EQ(late.json().at("code").as_string(), "deadline_exceeded");
    auto const list = co_await guest.call("List", "{}");
    EXPECT_EQ(list.status, 200);
    co_await kill(guest, pid);
    auto const gone = co_await guest.call("SendInput", input_request(pid, "stdin", "x"));
    EXPECT_EQ(gone.status, 400);
  });
}

TEST(ProcessInput, StreamInputTakesAClientStream) {
  with_guest([](Guest& guest) -> asio::awaitable<void> {
    auto const stream = co_await guest.start("cat", "");
    auto const begun = co_await stream->next();
    auto const pid = testing::pid_of(*begun);
    std::string body;
    append_envelope(body, 0, fmt::format(R"({{"start":{{{}}}}})", testing::selector(pid)));
    append_envelope(body, 0, R"({"keepalive":{}})");
    append_envelope(
        body,
        0,
        fmt::format(R"({{"data":{{"input":{{"stdin":"{}"}}}}}})", base::base64_of("one ")));
    append_envelope(
        body, 0, fmt::format(R"({{"data":{{"input":{{"stdin":"{}"}}}}}})", base::base64_of("two")));
    testing::HeaderList const headers{{"content-type", "application/connect+json"}};
    auto const answer =
        co_await guest.request("POST", "/process.Process/StreamInput", headers, body);
    EXPECT_EQ(answer.status, 200);
    std::string expected;
    append_envelope(expected, 0, "{}");
    append_envelope(expected, 2, "{}");
    EXPECT_EQ(answer.body, expected);
    auto const closed = co_await guest.call("CloseStdin", "{" + testing::selector(pid) + "}");
    EXPECT_EQ(closed.status, 200);
    auto const events = co_await stream->rest();
    EXPECT_EQ(events.bytes("stdout"), "one two");
    std::string orphan;
    append_envelope(orphan, 0, R"({"data":{"input":{"stdin":"eA=="}}})");
    auto const refused =
        co_await guest.request("POST", "/process.Process/StreamInput", headers, orphan);
    EXPECT_NE(refused.body.find("the first message has to be start"), std::string::npos);
  });
}

TEST(ProcessTerminal, IsARealOne) {
  with_guest([](Guest& guest) -> asio::awaitable<void> {
    auto const stream = co_await guest.stream(
        "Start",
        R"({"process":{"cmd":"/bin/sh","args":["-i"],"envs":{"PS1":"> "}},"pty":{"size":{"cols":90,"rows":33}}})");
    auto const begun = co_await stream->next();
    auto const pid = testing::pid_of(*begun);
    auto type = [&](std::string text) -> asio::awaitable<void> {
      auto const sent = co_await guest.call("SendInput", input_request(pid, "pty", text));
      EXPECT_EQ(sent.status, 200) << sent.body;
    };
    co_await type("stty size; tty; echo $TERM-$LANG\n");
    auto const seen = co_await read_until(*stream, "pty", "xterm-256color-C.UTF-8");
    EXPECT_NE(seen.find("33 90"), std::string::npos) << seen;
    EXPECT_NE(seen.find("/dev/pts/"), std::string::npos) << seen;
    EXPECT_NE(seen.find("stty size"), std::string::npos) << "what is typed is echoed: " << seen;
    auto const resized = co_await guest.call(
        "Update", "{" + testing::selector(pid) + R"(,"pty":{"size":{"cols":120,"rows":40}}})");
    EXPECT_EQ(resized.body, "{}");
    co_await type("stty size\n");
    co_await read_until(*stream, "pty", "40 120");
    // ctrl-c reaches what runs in the foreground, the shell goes on.
    co_await type("sh -c 'echo be\"\"gun; exec sleep 20'\n");
    co_await read_until(*stream, "pty", "begun");
    co_await type("\x03");
    co_await type("echo on\"\"wards\n");
    co_await read_until(*stream, "pty", "onwards");
    auto const wrong = co_await guest.call("SendInput", input_request(pid, "stdin", "x"));
    EXPECT_EQ(wrong.status, 400);
    auto const not_closed = co_await guest.call("CloseStdin", "{" + testing::selector(pid) + "}");
    EXPECT_EQ(not_closed.json().at("code").as_string(), "failed_precondition");
    co_await type("exit 5\n");
    auto const events = co_await stream->rest();
    EXPECT_EQ(events.last().at("exitCode").as_int64(), 5);
  });
}

TEST(ProcessTerminal, KilledIsToldInTheWordsOfTheProtocol) {
  with_guest([](Guest& guest) -> asio::awaitable<void> {
    auto const stream = co_await guest.stream("Start", R"({"process":{"cmd":"/bin/sh"},"pty":{}})");
    auto const begun = co_await stream->next();
    co_await kill(guest, testing::pid_of(*begun));
    auto const events = co_await stream->rest();
    EXPECT_EQ(wire::to_text(events.last()),
              R"({"exitCode":-1,"status":"signal: killed","error":"signal: killed"})");
  });
}

TEST(ProcessConnect, EveryReaderGetsWhatComesAfterHim) {
  with_guest([](Guest& guest) -> asio::awaitable<void> {
    auto const first = co_await guest.start("echo early; read x; echo late", "");
    auto const begun = co_await first->next();
    auto const pid = testing::pid_of(*begun);
    co_await read_until(*first, "stdout", "early\n");
    auto const second = co_await guest.stream("Connect", "{" + testing::selector(pid) + "}");
    auto const connected = co_await second->next();
    EXPECT_EQ(testing::pid_of(*connected), pid);
    auto const sent = co_await guest.call("SendInput", input_request(pid, "stdin", "\n"));
    EXPECT_EQ(sent.status, 200);
    auto const here = co_await first->rest();
    auto const there = co_await second->rest();
    EXPECT_EQ(here.bytes("stdout"), "late\n");
    EXPECT_EQ(there.bytes("stdout"), "late\n") << "nothing is replayed unasked";
    EXPECT_EQ(there.last().at("status").as_string(), "exit status 0");
    EXPECT_EQ(there.end, "{}");
  });
}

TEST(ProcessConnect, AnEndedCommandCanStillBeAskedAndReplayed) {
  with_guest([](Guest& guest) -> asio::awaitable<void> {
    auto const run = co_await guest.run("echo one; echo two >&2; exit 7");
    auto const pid = testing::pid_of(run.messages.front());
    auto const plain_stream = co_await guest.stream("Connect", "{" + testing::selector(pid) + "}");
    auto const plain = co_await plain_stream->rest();
    EXPECT_EQ(plain.messages.size(), 2U);
    EXPECT_EQ(plain.last().at("exitCode").as_int64(), 7);
    auto const replay_stream = co_await guest.stream(
        "Connect", "{" + testing::selector(pid) + "}", {{"X-Space-Replay", "0"}});
    auto const replay = co_await replay_stream->rest();
    EXPECT_EQ(replay.bytes("stdout"), "one\n");
    EXPECT_EQ(replay.bytes("stderr"), "two\n");
    EXPECT_EQ(replay.messages.at(1).at("event").at("data").at("offset").as_int64(), 0);
    EXPECT_EQ(replay.messages.at(2).at("event").at("data").at("offset").as_int64(), 4);
    auto const middle_stream = co_await guest.stream(
        "Connect", "{" + testing::selector(pid) + "}", {{"X-Space-Replay", "2"}});
    auto const middle = co_await middle_stream->rest();
    EXPECT_EQ(middle.messages.at(1).at("event").at("data").at("offset").as_int64(), 2);
    for (std::string const offset : {"9", "-1", "x", "99999999999999999999"}) {
      auto const stream = co_await guest.stream(
          "Connect", "{" + testing::selector(pid) + "}", {{"X-Space-Replay", offset}});
      auto const refused = co_await stream->rest();
      EXPECT_NE(refused.end.find("X-Space-Replay"), std::string::npos) << refused.end;
    }
  });
}

TEST(ProcessConnect, WhatTheLogHasLostIsAnnounced) {
  with_guest([](Guest& guest) -> asio::awaitable<void> {
    auto const stream = co_await guest.start("head -c 1000000 /dev/zero; echo end; sleep 20");
    auto const begun = co_await stream->next();
    auto const pid = testing::pid_of(*begun);
    co_await read_until(*stream, "stdout", "end\n");
    auto const again = co_await guest.stream(
        "Connect", "{" + testing::selector(pid) + "}", {{"X-Space-Replay", "0"}});
    co_await again->next();
    auto const gap = co_await again->next();
    auto const lost = gap->at("event").at("gap").at("bytes").to_number<std::size_t>();
    auto const kept = co_await read_until(*again, "stdout", "end\n");
    EXPECT_EQ(lost + kept.size(), 1'000'004U);
    EXPECT_LE(kept.size(), ProcessService::log_bytes_max);
    EXPECT_GT(kept.size(), ProcessService::log_bytes_max / 2);
    co_await kill(guest, pid);
  });
}

TEST(ProcessConnect, WithoutAReaderACommandIsNeverHeldBack) {
  with_guest([](Guest& guest) -> asio::awaitable<void> {
    auto const done = guest.etc.path() + "/done";
    auto stream = co_await guest.start("head -c 5000000 /dev/zero; echo x >" + done);
    co_await stream->next();
    stream->hang_up();
    bool const ended =
        co_await testing::eventually([&] { return std::filesystem::exists(done); }, 5000ms);
    EXPECT_TRUE(ended);
  });
}

TEST(ProcessConnect, AReaderThatStopsReadingCostsABoundedLogAndDisturbsNobody) {
  with_guest([](Guest& guest) -> asio::awaitable<void> {
    auto const stream = co_await guest.start("head -c 20000000 /dev/zero; sleep 20");
    auto const begun = co_await stream->next();
    auto const pid = testing::pid_of(*begun);
    // Nobody reads `stream` now. The kernel's buffers fill, then the log, then the command waits:
    // memory stays.
    co_await async::sleep_for(300ms);
    auto const other = co_await guest.run("echo fine");
    EXPECT_EQ(other.bytes("stdout"), "fine\n");
    std::size_t got = 0;
    while (got < 20'000'000) {
      auto const message = co_await stream->next();
      if (!message) break;
      auto const& event = message->at("event").as_object();
      EXPECT_FALSE(event.contains("gap")) << "a pause of the reader loses nothing";
      if (event.contains("data")) {
        got += base::base64_decoded(std::string_view(event.at("data").at("stdout").as_string()))
                   .value()
                   .size();
      }
    }
    EXPECT_EQ(got, 20'000'000U);
    co_await kill(guest, pid);
  });
}

TEST(ProcessConnect, AReaderThatStopsForTooLongIsToldWhatItMissedAndTheCommandGoesOn) {
  Agent::Options options;
  options.processes.stall_max = 200ms;
  with_guest(
      [](Guest& guest) -> asio::awaitable<void> {
        auto const done = guest.etc.path() + "/done";
        auto const stream =
            co_await guest.start("head -c 20000000 /dev/zero; echo x >" + done + "; echo end");
        bool const went_on =
            co_await testing::eventually([&] { return std::filesystem::exists(done); }, 8000ms);
        EXPECT_TRUE(went_on);
        std::size_t lost = 0;
        auto const events = co_await stream->rest();
        for (auto const& message : events.messages) {
          auto const* gap = message.at("event").as_object().if_contains("gap");
          if (gap) lost += gap->at("bytes").to_number<std::size_t>();
        }
        EXPECT_GT(lost, 1'000'000U);
        EXPECT_EQ(lost + events.bytes("stdout").size(), 20'000'004U);
        EXPECT_TRUE(events.bytes("stdout").ends_with("end\n"));
        EXPECT_EQ(events.last().at("status").as_string(), "exit status 0");
      },
      options);
}

TEST(ProcessKeepalive, ComesAfterSilenceAndNotBefore) {
  with_guest([](Guest& guest) -> asio::awaitable<void> {
    auto const stream =
        co_await guest.start("sleep 0.6; echo a; sleep 0.6; echo b; sleep 1.5; echo c",
                             R"(,"stdin":false)",
                             {{"Keepalive-Ping-Interval", "1"}});
    auto const events = co_await stream->rest();
    std::string order;
    for (auto const& message : events.messages)
      order += std::string(message.at("event").as_object().begin()->key()) + " ";
    EXPECT_EQ(order, "start data data keepalive data end ");
  });
}

TEST(ProcessEnded, AreForgottenBeyondTheirNumber) {
  with_guest([](Guest& guest) -> asio::awaitable<void> {
    std::int64_t first = 0;
    for (std::size_t i = 0; i <= ProcessService::ended_kept_max; ++i) {
      auto const events = co_await guest.run("true");
      if (first == 0) first = testing::pid_of(events.messages.front());
    }
    auto const stream = co_await guest.stream("Connect", "{" + testing::selector(first) + "}");
    auto const events = co_await stream->rest();
    EXPECT_EQ(events.end,
              fmt::format(
                  R"({{"error":{{"code":"not_found","message":"process with pid {} not found"}}}})",
                  first));
  });
}

}  // namespace
}  // namespace agent
