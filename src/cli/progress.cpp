#include "cli/progress.hpp"

#include <sys/ioctl.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>

#include <unistd.h>

namespace cli {
namespace {

std::size_t columns_of_stderr() {
  winsize size{};
  return ioctl(2, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

void put(std::string_view text) {
  (void)!::write(2, text.data(), text.size());
}

double seconds_since(base::SteadyTime then) {
  return std::chrono::duration<double>(base::system_clock().steady_now() - then).count();
}

}  // namespace

Progress Progress::on_stderr() {
  char const* no_colour = std::getenv("NO_COLOR");  // NOLINT(concurrency-mt-unsafe): one thread
  return Progress(isatty(2) == 1, isatty(2) == 1 && (no_colour == nullptr || *no_colour == '\0'));
}

std::string Progress::bar(std::string_view what,
                          int percent,
                          std::string_view doing,
                          std::size_t columns) {
  constexpr int width = 24;
  int const filled = std::clamp(percent, 0, 100) * width / 100;
  auto line = fmt::format("  {:<28} [{}{}] {:3}% {}",
                          what,
                          std::string(static_cast<std::size_t>(filled), '#'),
                          std::string(static_cast<std::size_t>(width - filled), '.'),
                          std::clamp(percent, 0, 100),
                          doing);
  if (line.size() + 1 > columns) line.resize(columns > 0 ? columns - 1 : 0);
  return line;
}

void Progress::begin(std::string_view what) {
  what_ = what;
  started_ = base::system_clock().steady_now();
  drawn_ = {};
  if (terminal_) put(fmt::format("\r\033[K  {} ...", what_));
}

void Progress::update(int percent, std::string_view doing) {
  auto const now = base::system_clock().steady_now();
  if (!terminal_) {
    // A plain log: one line every ten seconds shows that it lives.
    if (drawn_ == base::SteadyTime{}) drawn_ = started_;
    if (now - drawn_ < std::chrono::seconds(10)) return;
    drawn_ = now;
    put(fmt::format("  {}: {}% {}\n", what_, percent, doing));
    return;
  }
  if (now - drawn_ < std::chrono::milliseconds(100)) return;
  drawn_ = now;
  put("\r\033[K" + bar(what_, percent, doing, columns_of_stderr()));
}

void Progress::finish(std::string_view mark, std::string_view colour, std::string_view result) {
  if (what_.empty()) return;
  auto const took = seconds_since(started_);
  std::string_view const plain = colours_ ? "\033[0m" : "";
  put(fmt::format("{}{}{}{} {:<28} {:6.1f} s  {}\n",
                  terminal_ ? "\r\033[K" : "",
                  colours_ ? colour : "",
                  mark,
                  plain,
                  what_,
                  took,
                  result));
  what_.clear();
}

void Progress::done(std::string_view result) {
  finish("+", "\033[32m", result);
}

void Progress::failed() {
  finish("x", "\033[31m", "failed");
}

void Progress::clear() {
  if (terminal_ && !what_.empty()) put("\r\033[K");
  what_.clear();
}

std::optional<std::pair<int, std::string>> parse_progress(std::string_view line) {
  constexpr std::string_view prefix = "progress ";
  if (!line.starts_with(prefix)) return std::nullopt;
  line.remove_prefix(prefix.size());
  int percent = 0;
  auto const [end, error] = std::from_chars(line.data(), line.data() + line.size(), percent);
  if (error != std::errc() || percent < 0 || percent > 100) return std::nullopt;
  line.remove_prefix(static_cast<std::size_t>(end - line.data()));
  if (line.starts_with(' ')) line.remove_prefix(1);
  return std::pair(percent, std::string(line));
}

}  // namespace cli
