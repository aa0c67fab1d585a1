#pragma once

#include "wire/codec.hpp"

#include <array>
#include <charconv>

#include <boost/json/monotonic_resource.hpp>

/// encode_text() without a document in between: for messages that are made for each request of a
/// gateway. The same text, byte by byte (text_test.cpp), for structs of whole numbers, strings,
/// lists, maps and optionals.
namespace wire {
namespace detail {

class BriefDocument {
 public:
  BriefDocument() noexcept : memory_(room_.data(), room_.size()) {}

  ~BriefDocument();
  BriefDocument(BriefDocument const&) = delete;
  BriefDocument& operator=(BriefDocument const&) = delete;

  /// Null when it is no JSON.
  json::value const* parse(std::string_view text);

 private:
  std::array<unsigned char, 4 * 1024> room_;
  json::monotonic_resource memory_;
  std::optional<json::value> value_;
};

/// In quotes, with JSON's escapes.
void append_quoted(std::string& out, std::string_view text);

template <class T> void append_value(std::string& out, T const& in);

template <class T> void append_members(std::string& out, T const& in) {
  char before = '{';
  boost::mp11::mp_for_each<Members<T>>([&](auto member) {
    auto const& field = in.*member.pointer;
    if constexpr (IsOptional<std::remove_cvref_t<decltype(field)>>::value) {
      if (!field) return;
    }
    out += before;
    before = ',';
    out += '"';
    out += member.name;
    out += "\":";
    append_value(out, field);
  });
  out += before == '{' ? "{}" : "}";
}

template <class T> void append_list(std::string& out, T const& in) {
  char before = '[';
  for (auto const& one : in) {
    out += before;
    before = ',';
    append_value(out, one);
  }
  out += before == '[' ? "[]" : "]";
}

template <class T> void append_map(std::string& out, T const& in) {
  char before = '{';
  for (auto const& [key, one] : in) {
    out += before;
    before = ',';
    append_quoted(out, key);
    out += ':';
    append_value(out, one);
  }
  out += before == '{' ? "{}" : "}";
}

template <class T> void append_value(std::string& out, T const& in) {
  if constexpr (IsOptional<T>::value) {
    if (in) {
      append_value(out, *in);
    } else {
      out += "null";
    }
  } else if constexpr (std::is_same_v<T, bool>) {
    out += in ? "true" : "false";
  } else if constexpr (std::is_integral_v<T>) {
    std::array<char, 24> digits;
    auto const end = std::to_chars(digits.data(), digits.data() + digits.size(), in).ptr;
    out.append(digits.data(), end);
  } else if constexpr (std::is_same_v<T, std::string>) {
    append_quoted(out, in);
  } else if constexpr (std::is_enum_v<T>) {
    append_quoted(out, boost::describe::enum_to_string(in, ""));
  } else if constexpr (IsVector<T>::value) {
    append_list(out, in);
  } else if constexpr (IsMap<T>::value) {
    append_map(out, in);
  } else {
    append_members(out, in);
  }
}

}  // namespace detail

template <class T> void append_text(std::string& out, T const& in) {
  detail::append_value(out, in);
}

/// decode_text() for a short message that may hold a secret: its document lives on the stack, as
/// far as 4 KiB reach, and is wiped.
template <class T>
base::Result<T> decode_brief(std::string_view text, UnknownKeys unknown = UnknownKeys::reject) {
  [[clang::uninitialized]] detail::BriefDocument document;
  auto const* const value = document.parse(text);
  if (!value) return base::fail(base::Code::invalid_argument, "not valid JSON");
  return decode<T>(*value, unknown);
}

}  // namespace wire
