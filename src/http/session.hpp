#pragma once

#include "async/alarm.hpp"
#include "http/inbound.hpp"
#include "http/server.hpp"

namespace http {

/// One connection of a Server: reads requests one after the other and answers them. Bytes of a next
/// request that came early (pipelining) stay in `inbound_` until the answer before is complete.
class Session final : public BodyReader, public ResponseWriter {
 public:
  Session(asio::any_io_executor const& executor,
          Limits const* limits,
          Handler* handler,
          net::Stream stream);

  /// Until the connection ends, is given away, or `stop()` was called and no request is running.
  asio::awaitable<void> run();
  /// No further request; an idle connection is closed at once.
  void stop() noexcept;
  /// Closes the connection; whatever waits on it fails.
  void cut() noexcept;

  // BodyReader
  async::Task<std::size_t> read_some(std::span<char> into) override;
  // ResponseWriter
  async::Task<void> send(Response response) override;
  async::Task<void> begin(ResponseHead head) override;
  async::Task<void> write(std::string_view bytes) override;
  async::Task<void> finish() override;
  asio::awaitable<void> wait_client_gone() override;
  std::pair<net::Stream, std::string> upgrade() override;

  bool started() const noexcept override { return answer_ != Answer::none; }

 private:
  enum class Answer : std::uint8_t { none, streaming, complete, given_away };

  async::Task<ParsedRequest> next_request();
  asio::awaitable<bool> serve_one(ParsedRequest parsed);
  asio::awaitable<void> refuse(base::Error error);
  asio::awaitable<void> linger();
  asio::awaitable<bool> drain_body();
  base::Result<void> append_head(ResponseHead const& head);
  bool body_is_allowed(int status) const noexcept;

  asio::any_io_executor executor_;
  Limits const* limits_;
  Handler* handler_;
  net::Stream stream_;
  async::Alarm alarm_;
  Inbound inbound_;
  bool idle_ = false;
  bool stopping_ = false;

  std::shared_ptr<void> handler_state_;

  // Of the request that is being served.
  Body body_;
  bool is_head_ = false;
  bool http_1_0_ = false;
  bool keep_alive_ = false;
  bool expects_continue_ = false;
  Answer answer_ = Answer::none;
  bool chunked_ = false;
  bool discards_body_ = false;         // HEAD, 204, 304: what the handler writes is not sent
  std::optional<std::uint64_t> left_;  // of a streamed answer with Content-Length
  std::string out_;  // reused, so that an answer costs no allocation in the long run
};

}  // namespace http
