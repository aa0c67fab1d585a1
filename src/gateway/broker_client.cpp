#include "gateway/broker_client.hpp"

#include <sys/socket.h>

#include <cerrno>

namespace gateway {
namespace {

constexpr std::size_t answer_bytes_max = 64 * 1024;
/// How long the loss of an idle connection may stay unnoticed; a question notices it at once.
constexpr std::chrono::milliseconds look_every(1'000);

}  // namespace

/// Half an exchange leaves an answer that must not be taken for the next one's: however a question
/// ends, also by being cancelled, the connection goes with it unless it was answered.
class BrokerClient::Question {
 public:
  explicit Question(BrokerClient& client) : client_(client) { client_.asking_ = true; }

  ~Question() {
    client_.asking_ = false;
    if (!answered_) client_.lose();
  }

  Question(Question const&) = delete;
  Question& operator=(Question const&) = delete;

  void answered() noexcept { answered_ = true; }

 private:
  BrokerClient& client_;
  bool answered_ = false;
};

async::Task<wire::Used> BrokerClient::use(wire::Use request, base::Deadline deadline) {
  auto const turn = co_await turn_.enter();
  if (!stream_) co_return base::fail(base::Code::unavailable, "the credential broker is gone");
  Question question(*this);
  auto asking = ask(wire::encode_text(request) + "\n");
  auto line = co_await async::with_deadline(deadline, std::move(asking));
  if (!line) co_return base::fail(base::Code::unavailable, "the credential broker does not answer");
  auto used = wire::decode_text<wire::Used>(*line, wire::UnknownKeys::ignore);
  explicit_bzero(line->data(), line->size());
  if (!used) {
    co_return base::fail(base::Code::unavailable,
                         "the credential broker answered with something else");
  }
  question.answered();
  if (!used->ok) co_return base::fail(base::code_named(used->code), used->message);
  co_return std::move(*used);
}

void BrokerClient::lose() noexcept {
  stream_.reset();
  received_.clear();
  changed_.notify_all();
}

boost::asio::awaitable<void> BrokerClient::renew(net::Stream stream) {
  if (stream_) stream_->close();
  auto const turn = co_await turn_.enter();
  stream_ = std::move(stream);
  received_.clear();
  changed_.notify_all();
}

boost::asio::awaitable<void> BrokerClient::wait_lost() {
  while (stream_) {
    if (stream_->native_handle() < 0) {
      co_await changed_.wait();
      continue;
    }
    // Only a look: what a question waits for stays where it is.
    char byte = 0;
    auto const got = ::recv(stream_->native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    bool const silent = got < 0 && (errno == EAGAIN || errno == EINTR);
    if (!asking_ && !silent) {
      // Its end, or words that nobody asked for.
      lose();
      co_return;
    }
    co_await async::race(changed_.wait(), async::sleep_for(look_every));
  }
}

boost::asio::awaitable<void> BrokerClient::wait_connected() {
  while (!stream_)
    co_await changed_.wait();
}

async::Task<std::string> BrokerClient::ask(std::string line) {
  auto sent = co_await stream_->write_text(line);
  if (!sent) co_return base::passing(sent);
  while (true) {
    if (auto const end = received_.find('\n'); end != std::string::npos) {
      auto answer = received_.substr(0, end);
      received_.erase(0, end + 1);
      co_return answer;
    }
    if (received_.size() > answer_bytes_max)
      co_return base::fail(base::Code::internal, "an endless answer");
    std::array<char, 4096> buffer;
    auto got = co_await stream_->read_some(buffer);
    if (!got) co_return base::passing(got);
    if (*got == 0) co_return base::fail(base::Code::unavailable, "closed");
    received_.append(buffer.data(), *got);
  }
}

}  // namespace gateway
