#include "gateway/dns.hpp"

#include "base/id.hpp"

namespace gateway {
namespace {

constexpr std::size_t message_bytes_max = 512;
constexpr std::size_t header_bytes = 12;
constexpr std::uint32_t ttl_seconds = 30;

constexpr std::uint16_t type_a = 1;
constexpr std::uint16_t type_ptr = 12;
constexpr std::uint16_t type_opt = 41;
constexpr std::uint16_t class_in = 1;

enum class Rcode : std::uint8_t {
  no_error = 0,
  format_error = 1,
  name_error = 3,
  not_implemented = 4,
  refused = 5
};

std::uint16_t get16(std::string_view bytes, std::size_t at) {
  return static_cast<std::uint16_t>(static_cast<unsigned char>(bytes[at]) << 8 |
                                    static_cast<unsigned char>(bytes[at + 1]));
}

void put16(std::string& out, unsigned value) {
  out += static_cast<char>(value >> 8 & 0xff);
  out += static_cast<char>(value & 0xff);
}

void put32(std::string& out, std::uint32_t value) {
  put16(out, value >> 16);
  put16(out, value & 0xffff);
}

struct Question {
  std::string name;  // dotted, as written
  std::uint16_t type = 0;
  std::uint16_t klass = 0;
  std::size_t end = 0;  // offset after it
};

/// A question never needs compression: a pointer in it is malformed.
std::optional<Question> read_question(std::string_view message) {
  Question question;
  std::size_t at = header_bytes;
  while (true) {
    if (at >= message.size()) return std::nullopt;
    auto const length = static_cast<unsigned char>(message[at++]);
    if (length == 0) break;
    if (length > 63 || at + length > message.size() || question.name.size() + length > 255)
      return std::nullopt;
    if (!question.name.empty()) question.name += '.';
    // A dot inside a label would make two names one.
    auto const label = message.substr(at, length);
    if (label.find('.') != std::string_view::npos) return std::nullopt;
    question.name += label;
    at += length;
  }
  if (at + 4 > message.size()) return std::nullopt;
  question.type = get16(message, at);
  question.klass = get16(message, at + 2);
  question.end = at + 4;
  return question;
}

/// After the question only one empty OPT record may follow; its options are neither read nor
/// echoed.
bool has_valid_tail(std::string_view message, std::size_t at, std::uint16_t additional) {
  if (additional == 0) return at == message.size();
  if (additional > 1 || message.size() < at + 11 || message[at] != '\0' ||
      get16(message, at + 1) != type_opt)
    return false;
  return at + 11 + get16(message, at + 9) == message.size();
}

std::string reply(std::string_view query,
                  Question const* question,
                  Rcode rcode,
                  std::string_view answer) {
  std::string out(query.substr(0, 2));
  auto const recursion_desired = static_cast<unsigned char>(query[2]) & 0x01U;
  put16(out, 0x8080U | recursion_desired << 8 | static_cast<unsigned>(rcode));
  put16(out, question ? 1 : 0);
  put16(out, answer.empty() ? 0 : 1);
  put32(out, 0);
  if (question) out += query.substr(header_bytes, question->end - header_bytes);
  out += answer;
  return out;
}

std::string record_head(std::uint16_t type, std::size_t length) {
  std::string out("\xc0\x0c", 2);  // the name is the question's
  put16(out, type);
  put16(out, class_in);
  put32(out, ttl_seconds);
  put16(out, static_cast<unsigned>(length));
  return out;
}

std::uint64_t keyed_hash(std::string_view text) {
  static std::string const key = base::random_hex(16);
  return std::hash<std::string>()(key + std::string(text) + key);
}

/// For records: a guest's own text, of which what is beyond 80 bytes is told apart and not told. A
/// name that was cut is no name: nobody can take it for one that it begins with.
std::string safe_name(std::string_view name) {
  constexpr std::size_t shown_max = 80;
  std::string out(name.substr(0, shown_max));
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    bool const fine =
        (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '_' || c == '.';
    if (!fine) c = '?';
  }
  if (name.size() > shown_max) out += fmt::format("?{:016x}", keyed_hash(name.substr(shown_max)));
  return out;
}

/// "7.0.18.198.in-addr.arpa" → 198.18.0.7
std::optional<std::uint32_t> address_of_reverse(std::string_view name) {
  constexpr std::string_view suffix = ".in-addr.arpa";
  if (!name.ends_with(suffix)) return std::nullopt;
  name.remove_suffix(suffix.size());
  std::uint32_t address = 0;
  for (int i = 0; i < 4; ++i) {
    auto const dot = name.find('.');
    auto const part = name.substr(0, dot);
    if (part.empty() || part.size() > 3 || (i < 3) == (dot == std::string_view::npos))
      return std::nullopt;
    unsigned value = 0;
    for (char const c : part) {
      if (c < '0' || c > '9') return std::nullopt;
      value = value * 10 + static_cast<unsigned>(c - '0');
    }
    if (value > 255) return std::nullopt;
    address |= value << (8 * i);
    if (dot != std::string_view::npos) name.remove_prefix(dot + 1);
  }
  return address;
}

std::string encode_name(std::string const& name) {
  std::string out;
  std::string_view rest = name;
  while (true) {
    auto const dot = rest.find('.');
    auto const label = rest.substr(0, dot);
    out += static_cast<char>(label.size());
    out += label;
    if (dot == std::string_view::npos) break;
    rest.remove_prefix(dot + 1);
  }
  return out + '\0';
}

DnsAnswer answer_pointer(std::string_view message,
                         Question const& question,
                         SyntheticNames const& names) {
  DnsAnswer out;
  out.name = safe_name(question.name);
  auto const address = address_of_reverse(out.name);
  auto const name = address ? names.name_of(*address) : std::nullopt;
  if (!name) {
    out.verdict = DnsVerdict::denied;
    out.message = reply(message, &question, Rcode::name_error, {});
    return out;
  }
  auto const data = encode_name(name->str());
  out.verdict = DnsVerdict::answered;
  out.message =
      reply(message, &question, Rcode::no_error, record_head(type_ptr, data.size()) + data);
  return out;
}

}  // namespace

base::Result<std::uint32_t> SyntheticNames::address_of(domain::HostName const& name) {
  if (auto const known = by_name_.find(name); known != by_name_.end()) return known->second;
  if (by_name_.size() >= names_max_ || next_ >= range_.count) {
    return base::fail(base::Code::exhausted, "this sandbox has asked for its limit of names");
  }
  auto const address = range_.first + next_++;
  by_name_.emplace(name, address);
  by_address_.emplace(address, name);
  return address;
}

void SyntheticNames::restore(domain::HostName const& name, std::uint32_t address) {
  if (!covers(address) || by_name_.contains(name) || by_address_.contains(address)) return;
  by_name_.emplace(name, address);
  by_address_.emplace(address, name);
  next_ = std::max(next_, address - range_.first + 1);
}

std::optional<domain::HostName> SyntheticNames::name_of(std::uint32_t address) const {
  auto const known = by_address_.find(address);
  if (known == by_address_.end()) return std::nullopt;
  return known->second;
}

DnsAnswer answer_query(std::string_view message,
                       SyntheticNames& names,
                       std::function<bool(domain::HostName const&)> const& allows) {
  DnsAnswer out;
  // An answer or a stump gets nothing back: nobody can be made to talk to a third party through us.
  if (message.size() < header_bytes || (static_cast<unsigned char>(message[2]) & 0x80U) != 0)
    return out;
  out.verdict = DnsVerdict::malformed;
  if ((static_cast<unsigned char>(message[2]) & 0x78U) != 0) {
    out.message = reply(message, nullptr, Rcode::not_implemented, {});
    return out;
  }
  bool const counts = get16(message, 4) == 1 && get16(message, 6) == 0 && get16(message, 8) == 0;
  auto const question =
      message.size() <= message_bytes_max && counts ? read_question(message) : std::nullopt;
  if (!question || !has_valid_tail(message, question->end, get16(message, 10))) {
    out.message = reply(message, nullptr, Rcode::format_error, {});
    return out;
  }
  if (question->klass != class_in) {
    out.message = reply(message, &*question, Rcode::refused, {});
    return out;
  }
  if (question->type == type_ptr) return answer_pointer(message, *question, names);
  auto const name = domain::HostName::parse(question->name);
  out.name = safe_name(question->name);
  if (!name || !allows(*name)) {
    // NXDOMAIN and not REFUSED: stub resolvers take REFUSED as a reason to ask elsewhere.
    out.verdict = DnsVerdict::denied;
    out.message = reply(message, &*question, Rcode::name_error, {});
    return out;
  }
  if (question->type != type_a) {
    out.verdict = DnsVerdict::no_data;
    out.message = reply(message, &*question, Rcode::no_error, {});
    return out;
  }
  auto const names_before = names.size();
  auto const address = names.address_of(*name);
  if (!address) {
    out.verdict = DnsVerdict::limited;
    out.message = reply(message, &*question, Rcode::refused, {});
    return out;
  }
  if (names.size() > names_before) out.made.emplace(*name, *address);
  std::string data;
  put32(data, *address);
  out.verdict = DnsVerdict::answered;
  out.message =
      reply(message, &*question, Rcode::no_error, record_head(type_a, data.size()) + data);
  return out;
}

}  // namespace gateway
