#include "base/log.hpp"

#include <ctime>

#include <boost/json/serialize.hpp>
#include <boost/json/string.hpp>
#include <fmt/format.h>
#include <unistd.h>

namespace base::log {
namespace {

std::string program_name = "space";
Level least_level = Level::info;

std::string quoted(std::string_view text) {
  return boost::json::serialize(boost::json::string(text));
}

std::string now_utc() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  tm parts{};
  gmtime_r(&now.tv_sec, &parts);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z",
                     parts.tm_year + 1900,
                     parts.tm_mon + 1,
                     parts.tm_mday,
                     parts.tm_hour,
                     parts.tm_min,
                     parts.tm_sec,
                     now.tv_nsec / 1'000'000);
}

std::string_view name_of(Level level) {
  switch (level) {
    case Level::debug:
      return "debug";
    case Level::info:
      return "info";
    case Level::warn:
      return "warn";
    case Level::error:
      return "error";
  }
  return "error";
}

}  // namespace

void configure(std::string_view program, Level least) {
  program_name = program;
  least_level = least;
}

void write(Level level, std::string_view event, Fields fields) {
  if (level < least_level) return;
  auto line = fmt::format(R"({{"t":"{}","level":"{}","program":{},"event":{})",
                          now_utc(),
                          name_of(level),
                          quoted(program_name),
                          quoted(event));
  for (auto const& field : fields) {
    line += fmt::format(",{}:{}",
                        quoted(field.key),
                        field.value.quoted() ? quoted(field.value.text()) : field.value.text());
  }
  line += "}\n";
  // One write per line, so that lines of several processes do not mix. A full stderr loses the
  // line.
  [[maybe_unused]] auto const written = ::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace base::log
