#pragma once

#include "base/result.hpp"

#include <limits>
#include <map>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include <boost/describe/class.hpp>
#include <boost/describe/enum.hpp>
#include <boost/describe/enum_from_string.hpp>
#include <boost/describe/enum_to_string.hpp>
#include <boost/describe/members.hpp>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/value.hpp>
#include <boost/mp11/algorithm.hpp>

/// JSON ↔ structs described with BOOST_DESCRIBE_STRUCT. A struct is the document: members in JSON's
/// spelling. Optionals and members with defaults may be absent; `static bool required(string_view)`
/// lists what may not; `std::string check() const`, when present, returns what is wrong with a
/// decoded value
/// ("" when nothing is). Errors name the place: `mounts[1].path: expected a string`.
namespace wire {

namespace json = boost::json;

enum class UnknownKeys : std::uint8_t { reject, ignore };

/// Text → value with depth (32) and size limits. Errors are invalid_argument with a position.
base::Result<json::value> parse_json(std::string_view text, std::size_t bytes_max = 1 << 20);
std::string to_text(json::value const& value);

namespace detail {

struct Decoder {
  UnknownKeys unknown;
  std::string path;
  std::string problem;  // empty while all is well

  bool fail(std::string what) {
    if (problem.empty()) problem = fmt::format("{}: {}", path.empty() ? "body" : path, what);
    return false;
  }
};

template <class T> struct IsOptional : std::false_type {};

template <class T> struct IsOptional<std::optional<T>> : std::true_type {};

template <class T> struct IsVector : std::false_type {};

template <class T> struct IsVector<std::vector<T>> : std::true_type {};

template <class T> struct IsMap : std::false_type {};

template <class T> struct IsMap<std::map<std::string, T>> : std::true_type {};

template <class T>
using Members = boost::describe::describe_members<T, boost::describe::mod_public>;

template <class T> bool decode_into(json::value const& value, T& out, Decoder& d);

template <class T> bool decode_number(json::value const& value, T& out, Decoder& d) {
  if constexpr (std::is_floating_point_v<T>) {
    if (!value.is_number()) return d.fail("expected a number");
    out = value.to_number<T>();
    return true;
  } else {
    if (auto const* i = value.if_int64(); i && std::in_range<T>(*i)) {
      out = static_cast<T>(*i);
      return true;
    }
    if (auto const* u = value.if_uint64(); u && std::in_range<T>(*u)) {
      out = static_cast<T>(*u);
      return true;
    }
    return d.fail(value.is_number() ? "expected an integer in range" : "expected an integer");
  }
}

template <class T> bool decode_enum(json::value const& value, T& out, Decoder& d) {
  auto const* text = value.if_string();
  if (text && boost::describe::enum_from_string(text->c_str(), out)) return true;
  std::string names;
  boost::mp11::mp_for_each<boost::describe::describe_enumerators<T>>(
      [&](auto one) { names += (names.empty() ? "" : ", ") + std::string(one.name); });
  return d.fail("expected one of: " + names);
}

template <class T> bool decode_vector(json::value const& value, T& out, Decoder& d) {
  auto const* array = value.if_array();
  if (!array) return d.fail("expected an array");
  out.clear();  // what is given replaces a default
  auto const mark = d.path.size();
  for (std::size_t i = 0; i < array->size(); ++i) {
    d.path += fmt::format("[{}]", i);
    typename T::value_type one{};
    if (!decode_into((*array)[i], one, d)) return false;
    out.push_back(std::move(one));
    d.path.resize(mark);
  }
  return true;
}

template <class T> bool decode_map(json::value const& value, T& out, Decoder& d) {
  auto const* object = value.if_object();
  if (!object) return d.fail("expected an object");
  out.clear();
  auto const mark = d.path.size();
  for (auto const& pair : *object) {
    d.path += (mark ? "." : "") + std::string(pair.key());
    typename T::mapped_type one{};
    if (!decode_into(pair.value(), one, d)) return false;
    out.insert_or_assign(std::string(pair.key()), std::move(one));
    d.path.resize(mark);
  }
  return true;
}

template <class T> void reject_unknown(json::object const& object, Decoder& d) {
  for (auto const& pair : object) {
    bool known = false;
    boost::mp11::mp_for_each<Members<T>>([&](auto member) { known |= pair.key() == member.name; });
    if (!known) d.fail(fmt::format("unknown field \"{}\"", std::string_view(pair.key())));
  }
}

template <class T> bool decode_struct(json::value const& value, T& out, Decoder& d) {
  auto const* object = value.if_object();
  if (!object) return d.fail("expected an object");
  auto const mark = d.path.size();
  std::size_t seen = 0;
  boost::mp11::mp_for_each<Members<T>>([&](auto member) {
    if (!d.problem.empty()) return;
    auto const* field = object->if_contains(member.name);
    d.path += (mark ? "." : "") + std::string(member.name);
    if (field) {
      ++seen;
      decode_into(*field, out.*member.pointer, d);
    } else if constexpr (requires { T::required(std::string_view()); }) {
      if (T::required(member.name)) d.fail("required");
    }
    d.path.resize(mark);
  });
  if (d.problem.empty() && d.unknown == UnknownKeys::reject && seen != object->size())
    reject_unknown<T>(*object, d);
  if constexpr (requires {
                  { out.check() } -> std::convertible_to<std::string>;
                }) {
    if (d.problem.empty()) {
      std::string wrong = out.check();
      if (!wrong.empty()) d.problem = d.path.empty() ? wrong : fmt::format("{}: {}", d.path, wrong);
    }
  }
  return d.problem.empty();
}

template <class T> bool decode_into(json::value const& value, T& out, Decoder& d) {
  if constexpr (std::is_same_v<T, json::value>) {
    out = value;
    return true;
  } else if constexpr (IsOptional<T>::value) {
    if (value.is_null()) return true;
    return decode_into(value, out.emplace(), d);
  } else if constexpr (std::is_same_v<T, bool>) {
    if (auto const* yes = value.if_bool()) return out = *yes, true;
    return d.fail("expected a boolean");
  } else if constexpr (std::is_arithmetic_v<T>) {
    return decode_number(value, out, d);
  } else if constexpr (std::is_same_v<T, std::string>) {
    if (auto const* text = value.if_string()) return out.assign(text->data(), text->size()), true;
    return d.fail("expected a string");
  } else if constexpr (std::is_enum_v<T>) {
    return decode_enum(value, out, d);
  } else if constexpr (IsVector<T>::value) {
    return decode_vector(value, out, d);
  } else if constexpr (IsMap<T>::value) {
    return decode_map(value, out, d);
  } else {
    return decode_struct(value, out, d);
  }
}

template <class T> json::value encode_value(T const& in) {
  if constexpr (std::is_same_v<T, json::value>) {
    return in;
  } else if constexpr (IsOptional<T>::value) {
    return in ? encode_value(*in) : json::value(nullptr);
  } else if constexpr (std::is_arithmetic_v<T>) {
    return json::value(in);
  } else if constexpr (std::is_same_v<T, std::string>) {
    return json::value(json::string(in));
  } else if constexpr (std::is_enum_v<T>) {
    return json::value(json::string(boost::describe::enum_to_string(in, "")));
  } else if constexpr (IsVector<T>::value) {
    json::array array;
    for (auto const& one : in)
      array.push_back(encode_value(one));
    return array;
  } else if constexpr (IsMap<T>::value) {
    json::object object;
    for (auto const& [key, one] : in)
      object[key] = encode_value(one);
    return object;
  } else {
    json::object object;
    boost::mp11::mp_for_each<Members<T>>([&](auto member) {
      auto const& field = in.*member.pointer;
      // An absent optional is an absent key, not null.
      if constexpr (IsOptional<std::remove_cvref_t<decltype(field)>>::value) {
        if (!field) return;
      }
      object[member.name] = encode_value(field);
    });
    return object;
  }
}

}  // namespace detail

template <class T>
base::Result<T> decode(json::value const& value, UnknownKeys unknown = UnknownKeys::reject) {
  detail::Decoder d{unknown, {}, {}};
  T out{};
  if (!detail::decode_into(value, out, d))
    return base::fail(base::Code::invalid_argument, std::move(d.problem));
  return out;
}

/// Parses and decodes in one step.
template <class T>
base::Result<T> decode_text(std::string_view text,
                            UnknownKeys unknown = UnknownKeys::reject,
                            std::size_t bytes_max = 1 << 20) {
  auto value = parse_json(text, bytes_max);
  if (!value) return base::passing(value);
  return decode<T>(*value, unknown);
}

template <class T> json::value encode(T const& in) {
  return detail::encode_value(in);
}

template <class T> std::string encode_text(T const& in) {
  return to_text(encode(in));
}

}  // namespace wire
