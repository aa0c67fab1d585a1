#include "gateway/client_hello.hpp"

#include <gtest/gtest.h>

namespace gateway {
namespace {

std::string number(std::size_t value, std::size_t bytes) {
  std::string out;
  for (std::size_t i = bytes; i-- > 0;)
    out += static_cast<char>(value >> (8 * i) & 0xff);
  return out;
}

std::string piece(std::string_view body, std::size_t length_bytes) {
  return number(body.size(), length_bytes) + std::string(body);
}

std::string extension(std::uint16_t type, std::string_view body) {
  return number(type, 2) + piece(body, 2);
}

std::string sni(std::string_view name, char type = 0) {
  return extension(0, piece(std::string(1, type) + piece(name, 2), 2));
}

std::string hello(std::string const& extensions) {
  auto const body = std::string("\x03\x03") + std::string(32, 'r') + piece("", 1) +
                    piece("\x13\x01", 2) + piece(std::string(1, '\0'), 1) +
                    (extensions.empty() ? "" : piece(extensions, 2));
  return std::string("\x01") + piece(body, 3);
}

std::string record(std::string_view message) {
  return std::string("\x16\x03\x01") + piece(message, 2);
}

base::Result<std::optional<ClientHello>> parse(std::string const& extensions) {
  return parse_client_hello(record(hello(extensions)));
}

TEST(ClientHello, GivesNameAndProtocols) {
  auto const alpn = extension(16, piece(piece("h2", 1) + piece("http/1.1", 1), 2));
  auto const got = parse(sni("API.Example") + alpn);
  ASSERT_TRUE(got) << got.error().message();
  EXPECT_EQ((*got)->server_name->str(), "api.example");
  EXPECT_EQ((*got)->protocols, (std::vector<std::string>{"h2", "http/1.1"}));
  EXPECT_FALSE((*got)->encrypted_client_hello);
}

TEST(ClientHello, MayHaveNoName) {
  EXPECT_FALSE(parse("").value()->server_name);
  EXPECT_TRUE(parse(extension(0xfe0d, "x")).value()->encrypted_client_hello);
}

TEST(ClientHello, WaitsForTheRestAtEveryByteAndAcrossRecords) {
  auto const message = hello(sni("a.example"));
  auto const whole = record(message);
  for (std::size_t i = 0; i < whole.size(); ++i) {
    auto const got = parse_client_hello(std::string_view(whole).substr(0, i));
    ASSERT_TRUE(got) << i;
    EXPECT_FALSE(*got) << i;
  }
  std::string split;
  for (char const c : message)
    split += record(std::string(1, c));
  auto const got = parse_client_hello(split);
  ASSERT_TRUE(got && *got);
  EXPECT_EQ((*got)->server_name->str(), "a.example");
}

TEST(ClientHello, RefusesNamesThatAreNoHostName) {
  for (std::string const& name : {std::string(),
                                  std::string("127.0.0.1"),
                                  std::string("a b"),
                                  std::string("a\r\nb"),
                                  std::string("a/b.example"),
                                  std::string("\xff.example"),
                                  std::string("a.example\0b", 11),
                                  std::string(300, 'a'),
                                  std::string("a.example,DNS:evil.example")}) {
    EXPECT_FALSE(parse(sni(name))) << name;
  }
  EXPECT_FALSE(parse(sni("a.example", 1)));
  EXPECT_FALSE(parse(sni("a.example") + sni("b.example")));
  auto const two = extension(0,
                             piece(std::string(1, '\0') + piece("a.example", 2) +
                                       std::string(1, '\0') + piece("b.example", 2),
                                   2));
  EXPECT_FALSE(parse(two));
}

TEST(ClientHello, RefusesWhatIsNoTls) {
  for (auto const* bytes :
       {"GET / HTTP/1.1\r\n", "SSH-2.0-x\r\n", "\x16\x02\x01", "\x15\x03\x01\x00\x02\x01\x00"}) {
    EXPECT_FALSE(parse_client_hello(bytes)) << bytes;
  }
  EXPECT_FALSE(parse_client_hello(record(std::string("\x02") + piece("x", 3))));
  EXPECT_FALSE(parse_client_hello(record(hello("") + "extra")));
  EXPECT_FALSE(parse_client_hello(record(std::string("\x01") + number(20'000, 3))));
}

}  // namespace
}  // namespace gateway
