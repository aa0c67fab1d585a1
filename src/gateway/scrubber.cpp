#include "gateway/scrubber.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace gateway {
namespace {

constexpr std::size_t value_bytes_min = 8;
/// All forms of a value together, in its own length: 1 as it is, 4 × 3 percent, 2 JSON, 2 × 2 hex,
/// 6 × less than 2 base64.
constexpr std::size_t value_forms_max = 31;
/// A longer one makes longer steps, but more to prepare for each request.
constexpr std::size_t window_max = 16;
constexpr std::string_view lower_digits = "0123456789abcdef";
constexpr std::string_view upper_digits = "0123456789ABCDEF";
constexpr std::string_view base64_alphabet =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
constexpr std::string_view base64url_alphabet =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// What is written here is a secret in other words.
class Draft {
 public:
  explicit Draft(std::size_t bytes_max) { text_.reserve(bytes_max); }

  ~Draft() { explicit_bzero(text_.data(), text_.size()); }

  Draft(Draft const&) = delete;
  Draft& operator=(Draft const&) = delete;

  std::string& begin() {
    text_.clear();
    return text_;
  }

 private:
  std::string text_;
};

/// The base64 of the value as it looks after `before` (0 to 2) unknown bytes: the first characters
/// that depend on those are left out, and so is what the text that follows would change.
std::string_view base64_after(Draft& draft,
                              std::string_view value,
                              std::size_t before,
                              std::string_view alphabet) {
  auto& out = draft.begin();
  unsigned group = 0;
  unsigned bits = 0;
  auto const add = [&](char c) {
    group = group << 8 | static_cast<unsigned char>(c);
    bits += 8;
    for (; bits >= 6; bits -= 6)
      out += alphabet[group >> (bits - 6) & 63];
  };
  for (std::size_t i = 0; i < before; ++i)
    add('\0');
  for (char const c : value)
    add(c);
  return std::string_view(out).substr(before == 0 ? 0 : before + 1);
}

/// Each byte as `before`, if it is not 0, and two digits.
std::string_view hex(Draft& draft, std::string_view value, std::string_view digits, char before) {
  auto& out = draft.begin();
  out.resize(value.size() * (before == '\0' ? 2 : 3));
  auto* at = out.data();
  for (char const c : value) {
    auto const byte = static_cast<unsigned char>(c);
    if (before != '\0') *at++ = before;
    *at++ = digits[byte >> 4];
    *at++ = digits[byte & 15];
  }
  return out;
}

bool is_plain(char c) noexcept {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
         c == '_' || c == '.' || c == '~';
}

std::string_view percent(Draft& draft, std::string_view value, std::string_view digits) {
  auto& out = draft.begin();
  for (char const c : value) {
    auto const byte = static_cast<unsigned char>(c);
    if (is_plain(c)) {
      out += c;
    } else {
      out += '%';
      out += digits[byte >> 4];
      out += digits[byte & 15];
    }
  }
  return out;
}

std::string_view json_escaped(Draft& draft, std::string_view value) {
  auto& out = draft.begin();
  for (char const c : value) {
    if (c == '"' || c == '\\' || c == '/') out += '\\';
    out += c;
  }
  return out;
}

std::size_t place_of(char first, char second) noexcept {
  return (static_cast<std::size_t>(static_cast<unsigned char>(first)) << 2 ^
          static_cast<unsigned char>(second)) &
         1023;
}

}  // namespace

Scrubber::Scrubber(std::vector<std::vector<std::string>> const& values_of_owners)
    : found_(values_of_owners.size(), false) {
  std::size_t bytes = 0;
  std::size_t count = 0;
  for (auto const& values : values_of_owners)
    for (auto const& value : values) {
      bytes += value.size();
      ++count;
    }
  text_.reserve(bytes * value_forms_max);
  patterns_.reserve(count * 14);
  for (std::size_t owner = 0; owner < values_of_owners.size(); ++owner)
    for (auto const& value : values_of_owners[owner])
      if (value.size() >= value_bytes_min) add_value(owner, value);
  if (!patterns_.empty()) prepare_search();
}

void Scrubber::add_value(std::size_t owner, std::string_view value) {
  auto const add = [&](std::string_view text) { this->add(owner, text); };
  Draft draft(value.size() * 3);
  add(value);
  if (!std::ranges::all_of(value, is_plain)) {
    add(percent(draft, value, lower_digits));
    add(percent(draft, value, upper_digits));
    add(json_escaped(draft, value));
  }
  for (auto const digits : {lower_digits, upper_digits}) {
    add(hex(draft, value, digits, '%'));  // also the bytes that need it not
    add(hex(draft, value, digits, '\0'));
  }
  for (auto const alphabet : {base64_alphabet, base64url_alphabet})
    for (std::size_t before = 0; before < 3; ++before)
      add(base64_after(draft, value, before, alphabet));
}

Scrubber::~Scrubber() {
  explicit_bzero(text_.data(), text_.size());
}

std::string_view Scrubber::pattern(std::size_t number) const {
  auto const& span = patterns_[number].span;
  return std::string_view(text_).substr(span.begin, span.size);
}

void Scrubber::add(std::size_t owner, std::string_view text) {
  for (std::size_t i = 0; i < patterns_.size(); ++i)
    if (patterns_[i].owner == owner && pattern(i) == text) return;
  patterns_.push_back({{text_.size(), text.size()}, owner});
  begins_[static_cast<unsigned char>(text[0])] = true;
  text_ += text;
  longest_ = std::max(longest_, text.size());
  shortest_ = shortest_ == 0 ? text.size() : std::min(shortest_, text.size());
}

/// Wu and Manber's search: of each pattern only the first `window_` bytes count, and two bytes of
/// the text say how far the end of the next possible match is.
void Scrubber::prepare_search() {
  window_ = std::min(shortest_, window_max);
  auto const farthest = window_ - 1;
  skip_.fill(static_cast<std::uint8_t>(farthest));
  for (std::size_t number = 0; number < patterns_.size(); ++number) {
    auto const one = pattern(number);
    for (std::size_t i = 1; i < window_; ++i) {
      auto& skip = skip_[place_of(one[i - 1], one[i])];
      auto const rest = window_ - 1 - i;
      skip = std::min(skip, static_cast<std::uint8_t>(rest));
    }
  }
}

/// The size of the longest pattern with which `text` begins, or 0.
std::size_t Scrubber::longest_at(std::string_view text) const {
  std::size_t best = 0;
  for (std::size_t number = 0; number < patterns_.size(); ++number) {
    auto const one = pattern(number);
    if (one.size() > best && text.starts_with(one)) best = one.size();
  }
  return best;
}

/// Of two owners with one value both are meant.
void Scrubber::note_found(std::string_view match) {
  for (std::size_t number = 0; number < patterns_.size(); ++number)
    if (pattern(number) == match) found_[patterns_[number].owner] = true;
}

std::size_t Scrubber::overwrite(std::string& text, std::size_t covered, std::size_t limit) {
  if (patterns_.empty()) return 0;
  std::size_t overwritten = covered;  // up to here
  // Behind the search, whose window must see the text as it came: a match may begin in another.
  Span found{0, covered};
  auto const settle = [&] {
    auto const end = std::min(found.begin + found.size, limit);
    if (found.begin < end)
      std::fill_n(text.begin() + static_cast<std::ptrdiff_t>(found.begin), end - found.begin, '*');
  };
  std::size_t end = window_ - 1;
  while (end < text.size()) {
    auto const skip = skip_[place_of(text[end - 1], text[end])];
    if (skip > 0) {
      end += skip;
      continue;
    }
    auto const begin = end - (window_ - 1);
    if (begin >= limit) break;
    auto const size = longest_at(std::string_view(text).substr(begin));
    if (size > 0) {
      note_found(std::string_view(text).substr(begin, size));
      if (begin >= overwritten) {
        settle();
        found = {begin, size};
        ++hits_;
      } else {
        found.size = std::max(found.size, begin + size - found.begin);
      }
      overwritten = found.begin + found.size;
    }
    ++end;
  }
  settle();
  return overwritten;
}

std::string Scrubber::pass(std::string_view bytes) {
  held_ += bytes;
  // A match that begins before what is held back cannot become a longer one; one behind is found
  // again when more has come, or at the end.
  auto const held = beginning_at_end(held_);
  auto const safe = held_.size() - held;
  auto const end = overwrite(held_, covered_, safe);
  covered_ = end > safe ? end - safe : 0;
  if (held == 0) return std::exchange(held_, {});
  auto out = held_.substr(0, safe);
  held_.erase(0, safe);
  return out;
}

/// How many bytes at the end could be the beginning of a pattern that is not there as a whole yet.
std::size_t Scrubber::beginning_at_end(std::string_view text) const {
  if (patterns_.empty()) return 0;
  auto const most = std::min(text.size(), longest_ - 1);
  for (auto size = most; size > 0; --size) {
    auto const end = text.substr(text.size() - size);
    if (!begins_[static_cast<unsigned char>(end[0])]) continue;
    for (std::size_t number = 0; number < patterns_.size(); ++number)
      if (pattern(number).size() > size && pattern(number).starts_with(end)) return size;
  }
  return 0;
}

bool Scrubber::finds(std::string_view text) {
  auto const before = hits_;
  std::string copy(text);
  overwrite(copy, 0, copy.size());
  return hits_ > before;
}

std::string Scrubber::finish() {
  overwrite(held_, std::exchange(covered_, 0), held_.size());
  return std::exchange(held_, {});
}

std::string Scrubber::scrub(std::string_view text) {
  std::string out(text);
  overwrite(out, 0, out.size());
  return out;
}

}  // namespace gateway
