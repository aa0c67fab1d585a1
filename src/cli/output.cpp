#include "cli/output.hpp"

#include "wire/codec.hpp"

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include <unistd.h>

namespace cli {
namespace {

/// All of it, or as much as the reader takes: a closed pipe is the reader's way to say "enough".
void write_to(int fd, std::string_view text) {
  while (!text.empty()) {
    auto const wrote = ::write(fd, text.data(), text.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return;
    text.remove_prefix(static_cast<std::size_t>(wrote));
  }
}

std::string printable(std::string_view cell) {
  std::string out(cell);
  for (auto& c : out) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  return out;
}

std::string_view colour_of(std::string_view cell) {
  if (cell == "running" || cell == "done" || cell == "ready" || cell == "ok") return "\033[32m";
  if (cell == "failed" || cell == "broken") return "\033[31m";
  if (cell.ends_with("ing") || cell == "degraded") return "\033[33m";
  return {};
}

/// Characters, not bytes: UTF-8 continuation bytes take no room.
std::size_t width_of(std::string_view text) {
  return static_cast<std::size_t>(std::ranges::count_if(
      text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; }));
}

std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j)
    row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t corner = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      auto const above = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, corner + (a[i - 1] == b[j - 1] ? 0U : 1U)});
      corner = above;
    }
  }
  return row[b.size()];
}

/// Digits, then a unit of `units`; the value in the smallest unit.
base::Result<std::uint32_t> parse_scaled(
    std::string_view text,
    std::vector<std::pair<std::string_view, std::uint64_t>> const& units,
    std::string_view example) {
  std::uint64_t number = 0;
  auto const [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  auto const unit = text.substr(static_cast<std::size_t>(end - text.data()));
  if (error == std::errc()) {
    for (auto const& [name, factor] : units) {
      if (unit == name && number <= 0xFFFFFFFFULL / factor)
        return static_cast<std::uint32_t>(number * factor);
    }
  }
  return base::fail(
      base::Code::invalid_argument,
      fmt::format("\"{}\" is not understood; write it like {}", printable(text), example));
}

}  // namespace

Output Output::standard(bool as_json) {
  char const* no_colour =
      std::getenv("NO_COLOR");  // NOLINT(concurrency-mt-unsafe): before any thread
  bool const colours = isatty(1) == 1 && (no_colour == nullptr || *no_colour == '\0');
  return {[](std::string_view text) { write_to(1, text); },
          [](std::string_view text) { write_to(2, text); },
          as_json,
          colours};
}

void Output::line(std::string_view text) const {
  out_(std::string(text) + "\n");
}

void Output::note(std::string_view text) const {
  err_(std::string(text) + "\n");
}

void Output::document(json::value const& value) const {
  line(wire::to_text(value));
}

void Output::table(std::vector<std::string> const& head,
                   std::vector<std::vector<std::string>> const& rows) const {
  std::vector<std::size_t> widths;
  for (auto const& cell : head)
    widths.push_back(width_of(cell));
  for (auto const& row : rows) {
    for (std::size_t i = 0; i < row.size() && i < widths.size(); ++i)
      widths[i] = std::max(widths[i], width_of(row[i]));
  }
  auto const put = [&](std::vector<std::string> const& cells, bool with_colours) {
    std::string text;
    for (std::size_t i = 0; i < cells.size(); ++i) {
      auto const cell = printable(cells[i]);
      auto const colour = with_colours && colours_ ? colour_of(cell) : std::string_view();
      text += colour.empty() ? cell : fmt::format("{}{}\033[0m", colour, cell);
      if (i + 1 < cells.size()) text += std::string(widths[i] - width_of(cell) + 2, ' ');
    }
    line(text);
  };
  put(head, false);
  for (auto const& row : rows)
    put(row, true);
}

int Output::fail(base::Error const& error, std::string_view next) const {
  if (as_json_) {
    note(wire::to_text(
        json::object{{"code", base::name_of(error.code())}, {"message", error.message()}}));
  } else {
    note(fmt::format("space: {}", error.message()));
    if (!next.empty()) note(next);
  }
  return base::exit_code_of(error.code());
}

json::value const& member_of(json::value const& object, std::string_view key) {
  static json::value const null;
  auto const* fields = object.if_object();
  auto const* found = fields ? fields->if_contains(key) : nullptr;
  return found ? *found : null;
}

std::string text_of(json::value const& object, std::string_view key) {
  auto const& value = member_of(object, key);
  if (auto const* text = value.if_string()) return std::string(*text);
  return value.is_null() ? std::string() : wire::to_text(value);
}

std::int64_t number_of(json::value const& object, std::string_view key) {
  auto const& value = member_of(object, key);
  if (auto const* number = value.if_int64()) return *number;
  if (auto const* number = value.if_uint64()) return static_cast<std::int64_t>(*number);
  if (auto const* number = value.if_double()) return static_cast<std::int64_t>(*number);
  return 0;
}

double decimal_of(json::value const& object, std::string_view key) {
  auto const& value = member_of(object, key);
  return value.is_number() ? value.to_number<double>() : 0.0;
}

base::Result<std::uint32_t> parse_duration(std::string_view text) {
  return parse_scaled(text,
                      {{"", 1}, {"s", 1}, {"m", 60}, {"min", 60}, {"h", 3600}, {"d", 86400}},
                      "30s, 5m, 2h or 1d");
}

base::Result<std::uint32_t> parse_mib(std::string_view text) {
  return parse_scaled(
      text, {{"", 1}, {"MiB", 1}, {"M", 1}, {"GiB", 1024}, {"G", 1024}}, "512MiB or 2GiB");
}

std::string suggestion(std::string_view word, std::vector<std::string> const& known) {
  std::string best;
  std::size_t least = std::max<std::size_t>(2, word.size() / 3) + 1;
  for (auto const& one : known) {
    auto const far = one.starts_with(word) && word.size() >= 2 ? 1 : distance(word, one);
    if (far < least) {
      least = far;
      best = one;
    }
  }
  return best;
}

}  // namespace cli
