#pragma once

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

/// Structured log lines on stderr: one JSON object a line, `{"t":…,"level":…,"event":…,fields…}`.
/// `event` is a constant name ("vm_started"); prose belongs into error messages. Never a header
/// value, a body, an argv, an environment or a secret.
namespace base::log {

enum class Level : std::uint8_t { debug, info, warn, error };

/// A typed value of a field. Numbers stay numbers.
class Value {
 public:
  Value(std::string_view text)
      : text_(text), quoted_(true) {}  // NOLINT(google-explicit-constructor)

  Value(std::string const& text)
      : text_(text), quoted_(true) {}  // NOLINT(google-explicit-constructor)

  Value(char const* text) : text_(text), quoted_(true) {}  // NOLINT(google-explicit-constructor)

  Value(bool yes) : text_(yes ? "true" : "false") {}  // NOLINT(google-explicit-constructor)

  template <std::integral T>
  Value(T number) : text_(std::to_string(number)) {}  // NOLINT(google-explicit-constructor)

  template <std::floating_point T>
  Value(T number) : text_(std::to_string(number)) {}  // NOLINT(google-explicit-constructor)

  std::string const& text() const noexcept { return text_; }

  bool quoted() const noexcept { return quoted_; }

 private:
  std::string text_;
  bool quoted_ = false;
};

struct Field {
  std::string_view key;
  Value value;
};

using Fields = std::initializer_list<Field>;

/// Set once in main: the "program" field of every line, and the least level that is written.
void configure(std::string_view program, Level least);
void write(Level level, std::string_view event, Fields fields);

inline void debug(std::string_view event, Fields fields = {}) {
  write(Level::debug, event, fields);
}

inline void info(std::string_view event, Fields fields = {}) {
  write(Level::info, event, fields);
}

inline void warn(std::string_view event, Fields fields = {}) {
  write(Level::warn, event, fields);
}

inline void error(std::string_view event, Fields fields = {}) {
  write(Level::error, event, fields);
}

}  // namespace base::log
