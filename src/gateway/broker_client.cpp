#include "gateway/broker_client.hpp"

#include "wire/text.hpp"

namespace gateway {
namespace {

constexpr std::size_t answer_bytes_max = 64 * 1024;

void wipe(std::string& text) noexcept {
  explicit_bzero(text.data(), text.size());
  text.clear();
}

}  // namespace

/// One question. Whoever asked may have gone: its place stays until the answer came, so that this
/// answer is not taken for the next one's.
struct BrokerClient::Waiting {
  explicit Waiting(boost::asio::any_io_executor executor) : changed(std::move(executor)) {}

  async::Signal changed;
  std::uint64_t question = 0;
  base::Deadline until;
  bool abandoned = false;
  std::optional<base::Result<wire::Used>> answer;
};

BrokerClient::BrokerClient(boost::asio::any_io_executor executor,
                           net::Stream stream,
                           std::chrono::milliseconds answer_within)
    : executor_(executor),
      changed_(executor),
      asked_(executor),
      silence_(executor, [this] { lose(); }),
      answer_within_(answer_within),
      stream_(std::move(stream)) {}

BrokerClient::~BrokerClient() {
  wipe(received_);
}

async::Task<wire::Used> BrokerClient::use(wire::Use request) {
  auto used = co_await ask(std::move(request));
  if (!used) co_return base::passing(used);
  if (!used->ok) co_return base::fail(base::code_named(used->code), used->message);
  co_return used;
}

async::Task<wire::Used> BrokerClient::ask(wire::Use request) {
  if (!stream_) co_return base::fail(base::Code::unavailable, "the credential broker is gone");
  auto const mine = std::make_shared<Waiting>(executor_);
  mine->question = request.question = ++asked_count_;
  mine->until = base::system_clock().in(answer_within_);
  wire::append_text(outgoing_, request);
  outgoing_ += '\n';
  waiting_.push_back(mine);
  if (waiting_.size() == 1) watch_oldest();
  asked_.notify_all();

  struct Leave {
    BrokerClient& client;
    Waiting& waiting;

    ~Leave() {
      waiting.abandoned = true;
      bool const unseen = waiting.answer && *waiting.answer && (*waiting.answer)->held;
      if (unseen) client.done(waiting.question);
    }
  } const leave{*this, *mine};

  while (!mine->answer)
    co_await mine->changed.wait();
  auto used = std::move(*mine->answer);
  mine->answer.reset();
  co_return used;
}

void BrokerClient::done(std::uint64_t question) {
  if (!stream_) return;  // what was held there went with its connection
  wire::Use over;
  over.done = question;
  wire::append_text(outgoing_, over);
  outgoing_ += '\n';
  asked_.notify_all();
}

boost::asio::awaitable<void> BrokerClient::run() {
  async::TaskGroup both(executor_);
  both.spawn("questions", send_questions());
  both.spawn("answers", read_answers());
  co_await both.join();
}

/// All that is asked in one turn of the loop goes in one write.
boost::asio::awaitable<void> BrokerClient::send_questions() {
  while (true) {
    while (outgoing_.empty() || !stream_)
      co_await asked_.wait();
    auto const stream = stream_;
    auto const text = std::exchange(outgoing_, {});
    auto const sent = co_await stream->write_text(text);
    if (!sent && stream == stream_) lose();
  }
}

boost::asio::awaitable<void> BrokerClient::read_answers() {
  std::array<char, 4096> buffer;
  while (true) {
    while (!stream_)
      co_await changed_.wait();
    auto const stream = stream_;
    auto const got = co_await stream->read_some(buffer);
    if (stream == stream_) {
      if (got) received_.append(buffer.data(), *got);
      // Its end, an endless answer, or words that nobody asked for.
      if (!got || *got == 0 || !on_answers()) lose();
    }
    if (got) explicit_bzero(buffer.data(), *got);
  }
}

bool BrokerClient::on_answers() {
  std::size_t from = 0;
  bool good = true;
  while (good) {
    auto const end = received_.find('\n', from);
    if (end == std::string::npos) break;
    good = on_answer(std::string_view(received_).substr(from, end - from));
    from = end + 1;
  }
  if (good && from < received_.size()) {
    received_.erase(0, from);
  } else {
    wipe(received_);
  }
  return good && received_.size() <= answer_bytes_max;
}

bool BrokerClient::on_answer(std::string_view line) {
  if (waiting_.empty()) return false;
  auto used = wire::decode_brief<wire::Used>(line, wire::UnknownKeys::ignore);
  // An answer to another question than the oldest: nothing of this connection can be believed.
  if (!used || used->question != waiting_.front()->question) return false;
  auto const oldest = std::move(waiting_.front());
  waiting_.pop_front();
  watch_oldest();
  if (oldest->abandoned) {
    wipe(used->value);
    if (used->held) done(used->question);
    return true;
  }
  oldest->answer.emplace(std::move(*used));
  oldest->changed.notify_all();
  return true;
}

void BrokerClient::watch_oldest() {
  if (waiting_.empty()) {
    silence_.cancel();
  } else {
    silence_.set(waiting_.front()->until);
  }
}

void BrokerClient::lose() noexcept {
  if (stream_) stream_->close();
  stream_.reset();
  wipe(received_);
  outgoing_.clear();
  silence_.cancel();
  for (auto const& one : std::exchange(waiting_, {})) {
    one->answer.emplace(
        base::fail(base::Code::unavailable, "the credential broker does not answer"));
    one->changed.notify_all();
  }
  changed_.notify_all();
}

void BrokerClient::renew(net::Stream stream) {
  lose();
  stream_ = std::move(stream);
  changed_.notify_all();
  asked_.notify_all();
}

boost::asio::awaitable<void> BrokerClient::wait_lost() {
  while (stream_)
    co_await changed_.wait();
}

boost::asio::awaitable<void> BrokerClient::wait_connected() {
  while (!stream_)
    co_await changed_.wait();
}

}  // namespace gateway
