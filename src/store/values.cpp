#include "base/assert.hpp"
#include "store/database.hpp"
#include "wire/codec.hpp"

#include <charconv>

#include <boost/json/parse.hpp>

namespace store {
namespace {

std::int64_t micros_of(base::WallTime time) {
  return std::chrono::duration_cast<std::chrono::microseconds>(time.time_since_epoch()).count();
}

/// PostgreSQL's array literal: every element quoted, so that nothing in it is special.
std::string array_literal(std::vector<std::string> const& values) {
  std::string out = "{";
  for (auto const& value : values) {
    if (out.size() > 1) out += ',';
    out += '"';
    for (char const c : value) {
      if (c == '"' || c == '\\') out += '\\';
      out += c;
    }
    out += '"';
  }
  return out + "}";
}

}  // namespace

Params& Params::text(std::string value) {
  values_.emplace_back(std::move(value));
  return *this;
}

Params& Params::text_or_null(std::optional<std::string> value) {
  values_.push_back(std::move(value));
  return *this;
}

Params& Params::text_unless_empty(std::string value) {
  if (value.empty()) {
    values_.emplace_back(std::nullopt);
  } else {
    values_.emplace_back(std::move(value));
  }
  return *this;
}

Params& Params::number(std::int64_t value) {
  values_.emplace_back(std::to_string(value));
  return *this;
}

Params& Params::number_or_null(std::optional<std::int64_t> value) {
  if (value) return number(*value);
  values_.emplace_back(std::nullopt);
  return *this;
}

Params& Params::boolean(bool value) {
  values_.emplace_back(value ? "true" : "false");
  return *this;
}

Params& Params::document(json::value const& value) {
  if (value.is_null()) {
    values_.emplace_back(std::nullopt);
  } else {
    values_.emplace_back(wire::to_text(value));
  }
  return *this;
}

Params& Params::time(base::WallTime value) {
  return number(micros_of(value));
}

Params& Params::time_or_null(std::optional<base::WallTime> value) {
  if (value) return time(*value);
  values_.emplace_back(std::nullopt);
  return *this;
}

Params& Params::texts(std::vector<std::string> const& values) {
  values_.emplace_back(array_literal(values));
  return *this;
}

std::string RowReader::text() {
  return text_or_nothing().value_or(std::string());
}

std::optional<std::string> RowReader::text_or_nothing() {
  auto const value = rows_.at(row_, column_++);
  if (!value) return std::nullopt;
  return std::string(*value);
}

std::int64_t RowReader::number() {
  auto const value = number_or_nothing();
  SPACE_ASSERT(value.has_value(), "the statement lists a number that is never null here");
  return *value;
}

std::optional<std::int64_t> RowReader::number_or_nothing() {
  auto const value = rows_.at(row_, column_++);
  if (!value) return std::nullopt;
  std::int64_t number = 0;
  auto const [end, error] = std::from_chars(value->data(), value->data() + value->size(), number);
  SPACE_ASSERT(error == std::errc() && end == value->data() + value->size(),
               "the statement lists an integer in this place");
  return number;
}

bool RowReader::boolean() {
  return rows_.at(row_, column_++) == "t";
}

json::value RowReader::document() {
  auto const value = rows_.at(row_, column_++);
  if (!value) return nullptr;
  boost::system::error_code error;
  auto parsed = json::parse(*value, error);
  SPACE_ASSERT(!error, "the statement lists a jsonb in this place");
  return parsed;
}

base::WallTime RowReader::time() {
  return base::WallTime(std::chrono::microseconds(number()));
}

std::optional<base::WallTime> RowReader::time_or_nothing() {
  auto const value = number_or_nothing();
  if (!value) return std::nullopt;
  return base::WallTime(std::chrono::microseconds(*value));
}

}  // namespace store
