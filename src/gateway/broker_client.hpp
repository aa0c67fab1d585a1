#pragma once

#include "async/alarm.hpp"
#include "async/task.hpp"
#include "net/byte_stream.hpp"
#include "wire/credential.hpp"

#include <deque>

namespace gateway {

/// Asks the broker for each request's header, over one connection that space-hostd made for this
/// gateway; the broker knows us by our user id. Many questions may be under way: they are answered
/// in their order, and each answer carries its question's number. No answer is kept: a value lives
/// from its answer to the write of its request.
class BrokerClient {
 public:
  /// Perhaps without a connection at first: see renew(). Works while run() does.
  explicit BrokerClient(boost::asio::any_io_executor executor,
                        net::Stream stream = nullptr,
                        std::chrono::milliseconds answer_within = std::chrono::seconds(2));
  ~BrokerClient();

  /// `unavailable` when the broker is gone or silent, `denied` / `not_found` when it refuses. Fails
  /// closed: no header, no request.
  async::Task<wire::Used> use(wire::Use request);

  /// use() whose refusals are answers like others: they may say when to ask again. Of what is
  /// `held` done() is to be said.
  async::Task<wire::Used> ask(wire::Use request);
  /// The request of that question is over.
  void done(std::uint64_t question);

  /// Carries questions and answers until cancelled.
  boost::asio::awaitable<void> run();

  /// Takes the place of the former connection; questions that are under way there fail.
  void renew(net::Stream stream);

  bool connected() const noexcept { return stream_ != nullptr; }

  /// Returns when there is no connection (any more), also when nobody asks anything.
  boost::asio::awaitable<void> wait_lost();
  boost::asio::awaitable<void> wait_connected();

 private:
  struct Waiting;

  boost::asio::awaitable<void> send_questions();
  boost::asio::awaitable<void> read_answers();
  bool on_answers();
  bool on_answer(std::string_view line);
  void watch_oldest();
  void lose() noexcept;

  boost::asio::any_io_executor executor_;
  async::Signal changed_;  // the connection
  async::Signal asked_;
  async::Alarm silence_;
  std::chrono::milliseconds answer_within_;
  std::shared_ptr<net::ByteStream> stream_;
  std::uint64_t asked_count_ = 0;
  std::deque<std::shared_ptr<Waiting>> waiting_;  // in the order of the questions
  std::string outgoing_;
  std::string received_;
};

/// What the broker counts as under way until its request is over.
class Holds {
 public:
  explicit Holds(BrokerClient* broker) : broker_(broker) {}

  ~Holds() {
    for (auto const question : questions_)
      broker_->done(question);
  }

  Holds(Holds const&) = delete;
  Holds& operator=(Holds const&) = delete;

  void add(wire::Used const& used) {
    if (used.held) questions_.push_back(used.question);
  }

 private:
  BrokerClient* broker_;
  std::vector<std::uint64_t> questions_;
};

}  // namespace gateway
