#include "gateway/broker_client.hpp"

#include "async/testing.hpp"

#include <gtest/gtest.h>

namespace gateway {
namespace {

namespace asio = boost::asio;
using namespace std::chrono_literals;

wire::Use question_about(std::string path) {
  return {"key", "https", "api.example", 443, "GET", std::move(path), 0};
}

/// A client, the other end of its connection, and who asks.
struct Played {
  Played(asio::any_io_executor on, std::chrono::milliseconds answer_within)
      : executor(on), tasks(on) {
    auto [ours, theirs] = net::make_pipe(on);
    broker = std::move(theirs);
    client = std::make_unique<BrokerClient>(on, std::move(ours), answer_within);
    tasks.spawn("client", client->run());
  }

  /// Its answer's value, or the error's code, is in `out` some time.
  void ask(std::string path, std::string* out) { tasks.spawn("ask", asking(std::move(path), out)); }

  asio::awaitable<void> asking(std::string path, std::string* out) {
    auto const used = co_await client->use(question_about(std::move(path)));
    *out = used ? used->value : std::string(base::name_of(used.error().code()));
  }

  /// So many questions, as the broker reads them.
  asio::awaitable<std::vector<wire::Use>> questions(std::size_t count) {
    std::vector<wire::Use> out;
    while (out.size() < count) {
      std::array<char, 4096> buffer;
      auto const got = co_await broker->read_some(buffer);
      if (!got || *got == 0) break;
      received.append(buffer.data(), *got);
      for (auto end = received.find('\n'); end != std::string::npos; end = received.find('\n')) {
        out.push_back(wire::decode_text<wire::Use>(received.substr(0, end)).value());
        received.erase(0, end + 1);
      }
    }
    co_return out;
  }

  asio::awaitable<void> answer(std::uint64_t question, std::string value) {
    wire::Used used;
    used.ok = true;
    used.header = "x-api-key";
    used.value = std::move(value);
    used.question = question;
    auto const sent = co_await broker->write_text(wire::encode_text(used) + "\n");
    EXPECT_TRUE(sent);
  }

  asio::awaitable<void> close() {
    tasks.cancel();
    co_await tasks.join();
  }

  asio::any_io_executor executor;
  std::unique_ptr<BrokerClient> client;
  net::Stream broker;
  std::string received;
  async::TaskGroup tasks;
};

void play(std::function<asio::awaitable<void>(Played&)> test,
          std::chrono::milliseconds answer_within = 300ms) {
  async::run_test([&]() -> asio::awaitable<void> {
    Played played(co_await asio::this_coro::executor, answer_within);
    co_await test(played);
    co_await played.close();
  });
}

TEST(BrokerClient, ManyQuestionsAreUnderWayAndEachGetsItsAnswer) {
  play([](Played& played) -> asio::awaitable<void> {
    std::array<std::string, 3> values;
    for (std::size_t i = 0; i < values.size(); ++i)
      played.ask(fmt::format("/{}", i), &values.at(i));
    auto const asked = co_await played.questions(3);
    EXPECT_EQ(asked.size(), 3U) << "no question waits for another one's answer";
    for (auto const& one : asked)
      co_await played.answer(one.question, "value of " + one.path);
    co_await async::sleep_for(10ms);
    EXPECT_EQ(values[0], "value of /0");
    EXPECT_EQ(values[1], "value of /1");
    EXPECT_EQ(values[2], "value of /2");
  });
}

TEST(BrokerClient, AnAnswerToAnotherQuestionIsBelievedByNobody) {
  play([](Played& played) -> asio::awaitable<void> {
    std::array<std::string, 2> values;
    played.ask("/0", &values[0]);
    played.ask("/1", &values[1]);
    auto const asked = co_await played.questions(2);
    co_await played.answer(asked.at(1).question, "meant for the second");
    co_await async::sleep_for(10ms);
    EXPECT_EQ(values[0], "unavailable");
    EXPECT_EQ(values[1], "unavailable");
    EXPECT_FALSE(played.client->connected());
  });
}

TEST(BrokerClient, WhatIsHeldIsGivenBackAlsoWhenWhoeverAskedHasGone) {
  play(
      [](Played& played) -> asio::awaitable<void> {
        auto const executor = co_await asio::this_coro::executor;
        auto const held_answer = [&](std::uint64_t question) -> asio::awaitable<void> {
          wire::Used used;
          used.ok = true;
          used.held = true;
          used.value = "told";
          used.question = question;
          auto const sent = co_await played.broker->write_text(wire::encode_text(used) + "\n");
          EXPECT_TRUE(sent);
        };
        std::string value;
        std::optional<async::TaskGroup> asking(executor);
        asking->spawn("ask", played.asking("/gone", &value));
        auto const asked = co_await played.questions(1);
        asking->cancel();
        co_await asking->join();
        co_await held_answer(asked.at(0).question);
        auto const given_back = co_await played.questions(1);
        EXPECT_EQ(given_back.at(0).done, asked.at(0).question);
        EXPECT_EQ(value, "") << "nobody was told";
        {
          Holds holds(played.client.get());
          played.ask("/next", &value);
          auto const next = co_await played.questions(1);
          EXPECT_FALSE(next.at(0).done);
          wire::Used used;
          used.held = true;
          used.question = next.at(0).question;
          holds.add(used);
          co_await held_answer(used.question);
        }
        auto const over = co_await played.questions(1);
        EXPECT_TRUE(over.at(0).done.has_value());
        while (value != "told")
          co_await async::sleep_for(1ms);
      },
      60s);
}

TEST(BrokerClient, WordsThatNobodyAskedForEndTheConnection) {
  play([](Played& played) -> asio::awaitable<void> {
    co_await played.answer(1, "for whoever asks next");
    co_await played.client->wait_lost();
    std::string value;
    played.ask("/", &value);
    co_await async::sleep_for(10ms);
    EXPECT_EQ(value, "unavailable");
  });
}

TEST(BrokerClient, TheAnswerToOneThatLeftIsNotTheNextOnes) {
  play([](Played& played) -> asio::awaitable<void> {
    std::string left;
    std::string stayed;
    async::TaskGroup leaving(played.executor);
    leaving.spawn("leave", played.asking("/left", &left));
    played.ask("/stays", &stayed);
    auto const asked = co_await played.questions(2);
    leaving.cancel();
    co_await leaving.join();
    for (auto const& one : asked)
      co_await played.answer(one.question, "value of " + one.path);
    co_await async::sleep_for(10ms);
    EXPECT_EQ(left, "");
    EXPECT_EQ(stayed, "value of /stays");
    EXPECT_TRUE(played.client->connected());
  });
}

TEST(BrokerClient, ASilentBrokerIsLostAndANewConnectionServes) {
  play([](Played& played) -> asio::awaitable<void> {
    std::string value;
    played.ask("/", &value);
    co_await played.client->wait_lost();
    co_await async::sleep_for(10ms);
    EXPECT_EQ(value, "unavailable");
    auto [ours, theirs] = net::make_pipe(played.executor);
    played.client->renew(std::move(ours));
    played.broker = std::move(theirs);
    played.received.clear();
    played.ask("/again", &value);
    auto const asked = co_await played.questions(1);
    EXPECT_EQ(asked.size(), 1U);
    if (asked.empty()) co_return;
    co_await played.answer(asked[0].question, "served");
    co_await async::sleep_for(10ms);
    EXPECT_EQ(value, "served");
  });
}

}  // namespace
}  // namespace gateway
