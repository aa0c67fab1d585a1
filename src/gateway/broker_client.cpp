#include "gateway/broker_client.hpp"

namespace gateway {
namespace {
constexpr std::size_t answer_bytes_max = 64 * 1024;
}

async::Task<wire::Used> BrokerClient::use(wire::Use request, base::Deadline deadline) {
  auto const turn = co_await turn_.enter();
  if (!stream_) co_return base::fail(base::Code::unavailable, "the credential broker is gone");
  auto asking = ask(wire::encode_text(request) + "\n");
  auto line = co_await async::with_deadline(deadline, std::move(asking));
  if (!line) {
    // Half an exchange may be under way: its answer must not be taken for the next one's.
    stream_.reset();
    co_return base::fail(base::Code::unavailable, "the credential broker does not answer");
  }
  auto used = wire::decode_text<wire::Used>(*line, wire::UnknownKeys::ignore);
  explicit_bzero(line->data(), line->size());
  if (!used) {
    stream_.reset();
    co_return base::fail(base::Code::unavailable,
                         "the credential broker answered with something else");
  }
  if (!used->ok) co_return base::fail(base::code_named(used->code), used->message);
  co_return std::move(*used);
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
