#pragma once

#include "base/result.hpp"

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <boost/json/value.hpp>

/// What a verb writes: data on stdout, everything else on stderr. Tables for people, JSON for
/// programs.
namespace cli {

namespace json = boost::json;

class Output {
 public:
  using Sink = std::function<void(std::string_view)>;

  Output(Sink out, Sink err, bool as_json, bool colours)
      : out_(std::move(out)), err_(std::move(err)), as_json_(as_json), colours_(colours) {}

  /// The process's own streams; colours when stdout is a terminal and NO_COLOR is not set.
  static Output standard(bool as_json);

  bool as_json() const noexcept { return as_json_; }

  /// Data, as it is.
  void raw(std::string_view text) const { out_(text); }

  /// Another program's stderr, as it is.
  void raw_error(std::string_view text) const { err_(text); }

  void line(std::string_view text) const;
  void note(std::string_view text) const;
  /// The answer as the server gave it, on one line.
  void document(json::value const& value) const;
  /// Columns as wide as their widest cell, the last one unpadded; states coloured. Nothing but the
  /// head when there are no rows. Control characters of cells are shown as '?': names are chosen by
  /// strangers.
  void table(std::vector<std::string> const& head,
             std::vector<std::vector<std::string>> const& rows) const;
  /// "space: message", the next thing to try, and the exit code of that kind of failure. As JSON:
  /// {"code","message"} on stderr.
  int fail(base::Error const& error, std::string_view next = {}) const;

 private:
  Sink out_;
  Sink err_;
  bool as_json_;
  bool colours_;
};

/// A field of an answer as text for a cell: "" when absent or null.
std::string text_of(json::value const& object, std::string_view key);
/// The same for a number; 0 when absent.
std::int64_t number_of(json::value const& object, std::string_view key);
double decimal_of(json::value const& object, std::string_view key);
/// A member object or array; null when absent.
json::value const& member_of(json::value const& object, std::string_view key);

/// "30s", "5m", "2h", "1d", "90" (seconds) → seconds.
base::Result<std::uint32_t> parse_duration(std::string_view text);
/// "512MiB", "2GiB", "512" (MiB) → MiB.
base::Result<std::uint32_t> parse_mib(std::string_view text);

/// The word of `known` that `word` was most likely meant to be; "" when none is near.
std::string suggestion(std::string_view word, std::vector<std::string> const& known);

}  // namespace cli
