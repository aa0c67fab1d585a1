#pragma once

#include "http/client.hpp"
#include "http/server.hpp"
#include "proxy/visits.hpp"

namespace proxy {

namespace asio = boost::asio;

/// Carries one request to whoever answers it, and the answer back: bodies both ways at the same
/// time, as they come, with the slower side holding back the faster one. What the answering side
/// says is hostile.
class Forward {
 public:
  enum class Outcome : std::uint8_t {
    complete,     // the answer went out whole
    gone,         // the visitor left, or its connection broke: nothing more to say
    no_answer,    // nothing was sent to the visitor, and the other side closed without a word
    bad_answer,   // nothing was sent to the visitor, and what came is not an answer we pass on
    bad_request,  // nothing was sent to the visitor, whose body is malformed
    cut_short,    // the answer broke off in the middle; the visitor's connection must end
  };

  /// `head` is what the other side gets to see. `visit` may be null (the API); all references
  /// outlive run().
  Forward(http::Request& request,
          http::ResponseWriter& response,
          http::Connection& onward,
          http::RequestHead head,
          Visit* visit);

  /// When cancelled, the onward connection is closed.
  asio::awaitable<Outcome> run();

  /// Was any part of the request's body taken? Then it cannot be sent again.
  bool took_body() const noexcept { return took_body_; }

 private:
  asio::awaitable<void> send_body();
  asio::awaitable<void> take_answer();
  asio::awaitable<Outcome> pass_on(http::Exchange* exchange);
  asio::awaitable<Outcome> pass_body(http::Exchange* exchange, bool is_connect_stream);
  asio::awaitable<Outcome> switch_protocols();

  http::Request& request_;
  http::ResponseWriter& response_;
  http::Connection& onward_;
  http::RequestHead head_;
  Visit* visit_;
  bool has_body_;
  bool wants_upgrade_;
  bool took_body_ = false;
  bool bad_request_ = false;
  Outcome outcome_ = Outcome::gone;
  std::unique_ptr<http::Exchange> upgraded_;
};

}  // namespace proxy
