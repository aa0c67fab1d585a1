#pragma once

#include "http/server.hpp"
#include "wire/codec.hpp"

#include <deque>

/// For tests: proxy and agent in one, as GuestClient sees them; one sandbox, its files in a map,
/// its commands scripted. Can also lie.
namespace controlplane::testing {

namespace asio = boost::asio;
namespace json = boost::json;

class FakeGuest final : public http::Handler {
 public:
  FakeGuest(asio::any_io_executor executor, std::string socket);
  void start();
  asio::awaitable<void> stop();
  asio::awaitable<void> handle(http::Request& request, http::ResponseWriter& response) override;

  std::string token;  // what X-Access-Token has to be
  std::map<std::string, std::string> files;
  std::map<std::string, std::string> modes;                // of files that were written with one
  std::vector<std::pair<std::string, json::value>> calls;  // method, message
  std::vector<http::Headers> headers;                      // of those calls
  std::vector<std::string> frames;           // JSON messages of a stream, after `start`
  std::string end_error;                     // JSON of the end frame's error; "" none
  bool cut = false;                          // the stream breaks instead of ending
  bool terminal = false;                     // commands have one
  std::map<std::string, std::string> unary;  // fixed answers by method
  std::string raw;                           // instead of frames: these bytes

 private:
  asio::awaitable<void> stream(http::ResponseWriter& response);
  asio::awaitable<void> serve_files(http::Request& request, http::ResponseWriter& response);
  asio::any_io_executor executor_;
  std::string socket_;
  std::unique_ptr<http::Server> server_;
};

/// A Connect envelope.
std::string frame(char flags, std::string_view payload);

}  // namespace controlplane::testing
