#include "agent/watch.hpp"

#include "agent/filesystem.hpp"
#include "agent/testing.hpp"

#include <sys/stat.h>

#include <filesystem>
#include <fstream>

namespace agent {
namespace {

namespace fs = std::filesystem;
using testing::Answer;
using testing::Guest;
using testing::with_guest;

void put(std::string const& path, std::string const& content) {
  std::ofstream(path, std::ios::binary) << content;
}

std::string_view word_of(WatchEventKind kind) {
  switch (kind) {
    case WatchEventKind::create:
      return "create";
    case WatchEventKind::write:
      return "write";
    case WatchEventKind::remove:
      return "remove";
    case WatchEventKind::rename:
      return "rename";
    case WatchEventKind::chmod:
      return "chmod";
  }
  return "?";
}

class Watching : public ::testing::Test {
 protected:
  void open(WatchOptions options) {
    auto opened = Watch::open(etc_.home(), options);
    ASSERT_TRUE(opened) << opened.error().message;
    watch_ = *std::move(opened);
  }

  /// "create a, write a"
  std::string events() {
    watch_->drain(100'000);
    std::string text;
    while (auto const event = watch_->take())
      text += fmt::format("{}{} {}", text.empty() ? "" : ", ", word_of(event->kind), event->name);
    return text;
  }

  std::string at(std::string const& name) const { return etc_.home() + "/" + name; }

  testing::Etc etc_;
  std::unique_ptr<Watch> watch_;
};

TEST_F(Watching, EveryKindOfChange) {
  open({});
  put(at("a"), "x");
  EXPECT_EQ(events(), "create a, write a");
  ::chmod(at("a").c_str(), 0600);
  EXPECT_EQ(events(), "chmod a");
  fs::rename(at("a"), at("b"));
  EXPECT_EQ(events(), "rename a, create b");
  fs::remove(at("b"));
  EXPECT_EQ(events(), "remove b");
  fs::create_directory(at("d"));
  put(at("d/inside"), "x");  // not watched
  EXPECT_EQ(events(), "create d");
  EXPECT_EQ(events(), "");
}

TEST_F(Watching, DirectoriesThatComeLaterAreFollowed) {
  fs::create_directories(at("old/er"));
  open({.recursive = true});
  put(at("old/er/f"), "");
  EXPECT_EQ(events(), "create old/er/f");
  fs::create_directory(at("new"));
  EXPECT_EQ(events(), "create new");
  put(at("new/f"), "x");
  EXPECT_EQ(events(), "create new/f, write new/f");
}

TEST_F(Watching, WhatWasThereBeforeTheWatchIsReportedOnce) {
  open({.recursive = true});
  fs::create_directories(at("n/m"));
  put(at("n/m/full"), "x");
  put(at("n/empty"), "");
  auto const seen = events();
  for (std::string const expected :
       {"create n", "create n/m", "create n/m/full", "write n/m/full", "create n/empty"})
    EXPECT_NE((", " + seen + ",").find(", " + expected + ","), std::string::npos)
        << expected << " in " << seen;
  EXPECT_EQ(seen.find("write n/empty"), std::string::npos);
  // Later changes there are events of their own again.
  fs::remove(at("n/empty"));
  put(at("n/empty"), "");
  EXPECT_EQ(events(), "remove n/empty, create n/empty");
}

TEST_F(Watching, NothingIsReportedTwiceWhenTheKernelSawItToo) {
  open({.recursive = true});
  // The directory's event waits unread while files are made in it, and the same again one level
  // deeper.
  fs::create_directory(at("d"));
  watch_->drain(0);
  put(at("d/a"), "");
  fs::create_directory(at("d/e"));
  put(at("d/e/b"), "");
  auto const seen = events();
  for (std::string const name : {"create d", "create d/a", "create d/e", "create d/e/b"}) {
    auto const padded = ", " + seen + ",";
    auto const first = padded.find(", " + name + ",");
    EXPECT_NE(first, std::string::npos) << name << " in " << seen;
    EXPECT_EQ(padded.find(", " + name + ",", first + 1), std::string::npos)
        << name << " twice in " << seen;
  }
}

TEST_F(Watching, ARenamedDirectoryKeepsItsWatchUnderTheNewName) {
  fs::create_directories(at("a/sub"));
  fs::create_directory(at("a.txt"));  // sorts between "a" and "a/sub"
  open({.recursive = true});
  fs::rename(at("a"), at("z"));
  EXPECT_EQ(events(), "rename a, create z");
  put(at("z/sub/f"), "");
  put(at("a.txt/g"), "");
  EXPECT_EQ(events(), "create z/sub/f, create a.txt/g");
}

TEST_F(Watching, ADirectoryThatLeftIsForgotten) {
  fs::create_directories(at("a/sub"));
  fs::create_directory(etc_.path() + "/outside");
  open({.recursive = true});
  fs::rename(at("a"), etc_.path() + "/outside/a");
  put(etc_.path() + "/outside/a/sub/f", "");
  put(at("g"), "");
  EXPECT_EQ(events(), "rename a, create g");
  fs::rename(etc_.path() + "/outside/a", at("back"));
  // Moved in as a whole it is one event, as a file is.
  EXPECT_EQ(events(), "create back");
  put(at("back/sub/h"), "");
  EXPECT_EQ(events(), "create back/sub/h");
}

TEST_F(Watching, LinksBelowAreNotFollowed) {
  fs::create_directory(etc_.path() + "/outside");
  open({.recursive = true});
  fs::create_directory_symlink(etc_.path() + "/outside", at("link"));
  put(etc_.path() + "/outside/f", "");
  EXPECT_EQ(events(), "create link");
}

TEST_F(Watching, TheDirectoryItself) {
  open({});
  fs::remove(etc_.home());
  EXPECT_EQ(events(), "remove .");
  fs::create_directory(etc_.home());
}

TEST_F(Watching, EntriesComeWithTheEventsThatLeaveSomething) {
  open({.include_entry = true});
  put(at("a"), "12");
  fs::remove(at("a"));
  put(at("b"), "123");
  watch_->drain(100);
  std::vector<WatchEvent> events;
  while (auto event = watch_->take())
    events.push_back(*std::move(event));
  ASSERT_EQ(events.size(), 5U);  // create and write of both, remove
  EXPECT_FALSE(events[0].entry || events[1].entry || events[2].entry);
  ASSERT_TRUE(events[3].entry && events[4].entry);
  EXPECT_EQ(events[4].entry->size, 3);
  EXPECT_EQ(events[4].entry->path, at("b"));
}

TEST_F(Watching, OverflowIsAnnouncedNotHidden) {
  open({});
  // More than the kernel keeps for one watcher (fs.inotify.max_queued_events, 16384 by default).
  std::ifstream limit_file("/proc/sys/fs/inotify/max_queued_events");
  int limit = 16384;
  limit_file >> limit;
  if (limit > 100'000) GTEST_SKIP() << "the kernel's queue is " << limit << " events here";
  for (int i = 0; i <= limit / 2; ++i) {
    put(at("a"), "");
    fs::remove(at("a"));
  }
  EXPECT_NE(events(), "");
  auto const loss = watch_->take_loss();
  ASSERT_TRUE(loss);
  EXPECT_NE(loss->find("events were lost"), std::string::npos);
  EXPECT_FALSE(watch_->take_loss());
  put(at("b"), "");
  EXPECT_EQ(events(), "create b");
}

TEST_F(Watching, AFullQueueLeavesTheRestInTheKernel) {
  open({});
  for (int i = 0; i < 5000; ++i)
    put(at(std::to_string(i)), "");
  EXPECT_EQ(watch_->drain(10), Watch::Drained::until_full);
  int taken = 0;
  for (; watch_->take(); ++taken) {
  }
  EXPECT_LT(taken, 5000);
  EXPECT_EQ(watch_->drain(100'000), Watch::Drained::all);
  for (; watch_->take(); ++taken) {
  }
  EXPECT_EQ(taken, 5000);
}

TEST(WatchOpen, WantsADirectory) {
  testing::Etc const etc;
  put(etc.home() + "/f", "");
  EXPECT_EQ(rpc_error_of(Watch::open(etc.home() + "/f", {}).error()).code,
            RpcCode::invalid_argument);
  EXPECT_EQ(rpc_error_of(Watch::open(etc.home() + "/nope", {}).error()).code, RpcCode::not_found);
  EXPECT_EQ(rpc_error_of(Watch::open(etc.home() + "/f/x", {}).error()).code, RpcCode::not_found);
}

asio::awaitable<Answer> call(Guest& guest, std::string method, json::object message) {
  co_return co_await guest.request("POST",
                                   "/filesystem.Filesystem/" + method,
                                   {{"content-type", "application/json"}},
                                   wire::to_text(message));
}

asio::awaitable<std::string> event_names(Guest& guest, std::string id) {
  auto const answer = co_await call(guest, "GetWatcherEvents", {{"watcherId", id}});
  EXPECT_EQ(answer.status, 200) << answer.body;
  std::string text;
  for (auto const& event : answer.json().at("events").as_array())
    text += fmt::format("{}:{} ",
                        std::string(event.at("type").as_string()).substr(11),
                        std::string(event.at("name").as_string()));
  co_return text;
}

// The client's own tests count these and do not sleep between the write and the question.
TEST(PolledWatcher, AnUploadOfANewFileIsExactlyThreeEvents) {
  with_guest([](Guest& guest) -> asio::awaitable<void> {
    fs::create_directory(guest.etc.home() + "/w");
    auto const created = co_await call(guest, "CreateWatcher", {{"path", "w"}});
    auto const id = std::string(created.json().at("watcherId").as_string());
    for (int round = 0; round < 20; ++round) {
      auto const name = fmt::format("f{}", round);
      auto const body = fmt::format(
          "--b\r\nContent-Disposition: form-data; name=\"file\"; "
          "filename=\"x\"\r\n\r\n{}\r\n--b--\r\n",
          std::string(round % 2 == 0 ? 5 : 700'000, 'x'));
      auto const answer =
          co_await guest.request("POST",
                                 "/files?path=w/" + name,
                                 {{"content-type", "multipart/form-data; boundary=b"}},
                                 body);
      EXPECT_EQ(answer.status, 200);
      auto const seen = co_await event_names(guest, id);
      if (round % 2 == 0)
        EXPECT_EQ(seen, fmt::format("CREATE:{0} CHMOD:{0} WRITE:{0} ", name));
      else
        EXPECT_TRUE(seen.starts_with(fmt::format("CREATE:{0} CHMOD:{0} WRITE:{0} ", name))) << seen;
    }
    auto const removed = co_await call(guest, "RemoveWatcher", {{"watcherId", id}});
    EXPECT_EQ(removed.body, "{}");
    for (std::string const method : {"GetWatcherEvents", "RemoveWatcher"}) {
      auto const gone = co_await call(guest, method, {{"watcherId", id}});
      EXPECT_EQ(gone.status, 404);
    }
  });
}

TEST(PolledWatcher, FollowsNewDirectoriesAndHasALimit) {
  with_guest([](Guest& guest) -> asio::awaitable<void> {
    auto const created = co_await call(
        guest, "CreateWatcher", {{"path", "."}, {"recursive", true}, {"includeEntry", true}});
    auto const id = std::string(created.json().at("watcherId").as_string());
    auto const made = co_await call(guest, "MakeDir", {{"path", "d"}});
    EXPECT_EQ(made.status, 200);
    put(guest.etc.home() + "/d/f", "x");
    auto const seen = co_await event_names(guest, id);
    EXPECT_NE(seen.find("CREATE:d/f "), std::string::npos) << seen;
    EXPECT_NE(seen.find("WRITE:d/f "), std::string::npos) << seen;
    auto status = 200;
    std::size_t count = 1;
    for (; status == 200 && count <= FilesystemService::watchers_max; ++count) {
      auto const more = co_await call(guest, "CreateWatcher", {{"path", "."}});
      status = more.status;
    }
    EXPECT_EQ(status, 429);
  });
}

TEST(WatchDirStream, StartsThenTellsChanges) {
  with_guest([](Guest& guest) -> asio::awaitable<void> {
    auto connection = co_await guest.connect();
    http::RequestHead head{
        "POST", "/filesystem.Filesystem/WatchDir", {{"content-type", "application/connect+json"}}};
    std::string body;
    append_envelope(body, envelope_message, R"({"path":"~","recursive":true})");
    auto exchange = co_await connection->start(std::move(head), std::move(body));
    testing::StreamCall stream(std::move(connection), std::move(exchange.value()));
    auto const first = co_await stream.next();
    EXPECT_EQ(wire::to_text(*first), R"({"start":{}})");
    put(guest.etc.home() + "/a", "x");
    auto const second = co_await stream.next();
    EXPECT_EQ(wire::to_text(*second), R"({"filesystem":{"name":"a","type":"EVENT_TYPE_CREATE"}})");
    auto const third = co_await stream.next();
    EXPECT_EQ(wire::to_text(*third), R"({"filesystem":{"name":"a","type":"EVENT_TYPE_WRITE"}})");
    stream.hang_up();
  });
}

TEST(WatchDirStream, EndsAtItsDeadlineAndRefusesFiles) {
  with_guest([](Guest& guest) -> asio::awaitable<void> {
    auto const open = [&](std::string message) -> asio::awaitable<std::string> {
      auto connection = co_await guest.connect();
      http::RequestHead head{
          "POST",
          "/filesystem.Filesystem/WatchDir",
          {{"content-type", "application/connect+json"}, {"connect-timeout-ms", "200"}}};
      std::string body;
      append_envelope(body, envelope_message, message);
      auto exchange = co_await connection->start(std::move(head), std::move(body));
      testing::StreamCall stream(std::move(connection), std::move(exchange.value()));
      co_await stream.rest();
      co_return stream.end;
    };
    auto const ended = co_await open(R"({"path":"."})");
    EXPECT_NE(ended.find("deadline_exceeded"), std::string::npos) << ended;
    put(guest.etc.home() + "/f", "");
    auto const file = co_await open(R"({"path":"f"})");
    EXPECT_NE(file.find("invalid_argument"), std::string::npos) << file;
    auto const missing = co_await open(R"({"path":"nope"})");
    EXPECT_NE(missing.find("not_found"), std::string::npos) << missing;
  });
}

}  // namespace
}  // namespace agent
