#include "gateway/client_hello.hpp"

namespace gateway {
namespace {

using base::Code;

std::unexpected<base::Error> bad(std::string_view what) {
  return base::fail(Code::invalid_argument, fmt::format("TLS ClientHello: {}", what));
}

/// Reads big-endian numbers and length-prefixed pieces; a read past the end sets `broken` and gives
/// nothing.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_(bytes) {}

  bool broken() const noexcept { return broken_; }

  bool empty() const noexcept { return rest_.empty(); }

  std::uint32_t number(std::size_t bytes) {
    std::uint32_t value = 0;
    for (char const c : take(bytes))
      value = value << 8 | static_cast<unsigned char>(c);
    return value;
  }

  std::string_view take(std::size_t bytes) {
    if (bytes > rest_.size()) {
      broken_ = true;
      rest_ = {};
      return {};
    }
    auto const piece = rest_.substr(0, bytes);
    rest_.remove_prefix(bytes);
    return piece;
  }

  std::string_view piece(std::size_t length_bytes) { return take(number(length_bytes)); }

 private:
  std::string_view rest_;
  bool broken_ = false;
};

constexpr std::uint8_t record_handshake = 22;
constexpr std::uint8_t message_client_hello = 1;
constexpr std::uint16_t extension_server_name = 0;
constexpr std::uint16_t extension_alpn = 16;
constexpr std::uint16_t extension_ech = 0xfe0d;
constexpr std::uint16_t extension_esni = 0xffce;

/// The handshake message out of its records; "" while it is not complete.
base::Result<std::string> collect_message(std::string_view bytes) {
  std::string message;
  while (true) {
    if (bytes.size() < 5) {
      if (!bytes.empty() && static_cast<unsigned char>(bytes[0]) != record_handshake)
        return bad("not a TLS handshake");
      if (bytes.size() > 1 && bytes[1] != 3) return bad("not a TLS handshake");
      return std::string();
    }
    Reader header(bytes.substr(0, 5));
    auto const type = header.number(1);
    auto const major = header.number(1);
    header.number(1);
    auto const length = header.number(2);
    if (type != record_handshake || major != 3) return bad("not a TLS handshake");
    if (length == 0 || length > 16'384) return bad("a record of a wrong length");
    auto const have = bytes.substr(5, length);
    message += have;
    if (message.size() > client_hello_bytes_max) return bad("too long");
    if (message.size() >= 4) {
      Reader start(message);
      if (start.number(1) != message_client_hello) return bad("the first message is another one");
      auto const wanted = start.number(3) + 4;
      if (wanted > client_hello_bytes_max) return bad("too long");
      if (message.size() > wanted) return bad("bytes after the hello in its record");
      if (message.size() == wanted) return message;
    }
    if (have.size() < length) return std::string();
    bytes.remove_prefix(5 + length);
  }
}

base::Result<void> read_server_name(std::string_view body, ClientHello& hello) {
  Reader reader(body);
  Reader list(reader.piece(2));
  auto const type = list.number(1);
  auto const name = list.piece(2);
  if (reader.broken() || list.broken() || !reader.empty()) return bad("a malformed server name");
  if (type != 0 || !list.empty()) return bad("a server name that is not exactly one host name");
  auto host = domain::HostName::parse(name);
  if (!host) return bad("server name: " + host.error().message());
  hello.server_name = std::move(*host);
  return {};
}

base::Result<void> read_alpn(std::string_view body, ClientHello& hello) {
  Reader reader(body);
  Reader list(reader.piece(2));
  while (!list.empty() && !list.broken())
    hello.protocols.emplace_back(list.piece(1));
  if (reader.broken() || list.broken() || !reader.empty()) return bad("malformed ALPN");
  return {};
}

base::Result<void> read_extensions(std::string_view bytes, ClientHello& hello) {
  Reader reader(bytes);
  std::vector<std::uint16_t> seen;
  while (!reader.empty()) {
    auto const type = static_cast<std::uint16_t>(reader.number(2));
    auto const body = reader.piece(2);
    if (reader.broken()) return bad("a malformed extension");
    if (std::ranges::find(seen, type) != seen.end()) return bad("an extension twice");
    seen.push_back(type);
    base::Result<void> done;
    if (type == extension_server_name) done = read_server_name(body, hello);
    if (type == extension_alpn) done = read_alpn(body, hello);
    if (type == extension_ech || type == extension_esni) hello.encrypted_client_hello = true;
    if (!done) return done;
  }
  return {};
}

}  // namespace

base::Result<std::optional<ClientHello>> parse_client_hello(std::string_view bytes) {
  auto message = collect_message(bytes);
  if (!message) return base::passing(message);
  if (message->empty()) return std::optional<ClientHello>();
  Reader reader(std::string_view(*message).substr(4));
  reader.take(2 + 32);  // version, random
  reader.piece(1);      // session id
  auto const ciphers = reader.piece(2);
  auto const compressions = reader.piece(1);
  if (reader.broken() || ciphers.empty() || ciphers.size() % 2 != 0 || compressions.empty())
    return bad("malformed");
  ClientHello hello;
  if (reader.empty()) return hello;
  auto const extensions = reader.piece(2);
  if (reader.broken() || !reader.empty()) return bad("malformed extensions");
  if (auto done = read_extensions(extensions, hello); !done) return base::passing(done);
  return hello;
}

}  // namespace gateway
