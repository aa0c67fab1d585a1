#include "gateway/websocket.hpp"

#include <gtest/gtest.h>

namespace gateway {
namespace {

using From = WebSocketGuard::From;
using namespace std::string_literals;

std::string fault(From from, std::string const& bytes, std::size_t step = 1000) {
  WebSocketGuard guard(from);
  for (std::size_t at = 0; at < bytes.size(); at += step)
    if (auto checked = guard.check(std::string_view(bytes).substr(at, step)); !checked)
      return checked.error().message();
  return {};
}

TEST(WebSocketGuard, PassesWhatPeersSayToEachOther) {
  auto const hello = "\x81\x85mask\x05\x04\x1f\x07\x02"s;
  auto const fragments = "\x01\x82maskab\x89\x80mask\x80\x82maskab"s;  // with a ping between
  auto const compressed = "\xc1\x81maskx"s;
  auto const long_one = "\x82\xfe\x01\x00mask"s + std::string(256, 'x');
  auto const longer = "\x82\xff\0\0\0\0\0\1\0\0mask"s + std::string(65536, 'x');
  auto const whole = hello + fragments + compressed + long_one + longer + "\x88\x82mask\x03\xe8"s;
  for (std::size_t const step : {std::size_t{1}, std::size_t{7}, whole.size()})
    EXPECT_EQ(fault(From::guest, whole, step), "") << step;
  EXPECT_EQ(fault(From::server, "\x81\x05hello\x8a\x00\x88\x02\x03\xe8"s), "");
}

TEST(WebSocketGuard, StopsEverythingElse) {
  EXPECT_NE(fault(From::guest, "SSH-2.0-OpenSSH_9.2\r\n"), "");
  EXPECT_NE(fault(From::guest, "GET / HTTP/1.1\r\n\r\n"), "");
  EXPECT_NE(fault(From::guest, "\x16\x03\x01\x02\x00"s), "");
  EXPECT_NE(fault(From::guest, "\x81\x05hello"s), "");             // no mask
  EXPECT_NE(fault(From::server, "\x81\x85maskhello"s), "");        // a mask
  EXPECT_NE(fault(From::guest, "\x80\x80mask"s), "");              // continues nothing
  EXPECT_NE(fault(From::guest, "\x01\x80mask\x01\x80mask"s), "");  // a message in a message
  EXPECT_NE(fault(From::guest, "\x83\x80mask"s), "");              // unknown
  EXPECT_NE(fault(From::guest, "\xa1\x80mask"s), "");              // reserved bit
  EXPECT_NE(fault(From::guest, "\x09\x80mask"s), "");              // a torn ping
  EXPECT_NE(fault(From::guest, "\x89\xfe\x01\x00mask"s), "");      // a long ping
  EXPECT_NE(fault(From::guest, "\x82\xff\x80\0\0\0\0\0\0\0mask"s), "");
  EXPECT_NE(fault(From::guest, "\x88\x80mask\x81\x80mask"s), "");  // after the end
}

}  // namespace
}  // namespace gateway
