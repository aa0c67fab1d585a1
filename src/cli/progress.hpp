#pragma once

#include "base/clock.hpp"

#include <functional>
#include <string>
#include <string_view>

namespace cli {

/// Steps that a person waits for, on stderr: on a terminal one line that changes, with a bar when
/// the step tells how far it is; elsewhere one line when a step ends (and one when it starts, if it
/// may take long).
class Progress {
 public:
  /// `terminal`: may move the cursor. `colours`: NO_COLOR is not set.
  Progress(bool terminal, bool colours) : terminal_(terminal), colours_(colours) {}

  static Progress on_stderr();

  /// Begins a step; the one before is over.
  void begin(std::string_view what);
  /// At most ten times a second; `percent` 0 to 100.
  void update(int percent, std::string_view doing);
  /// `result`: a few words after the tick, e.g. "made 5 users".
  void done(std::string_view result = {});
  void failed();
  /// Ends the step without a trace.
  void clear();

  /// The line as drawn, for tests.
  static std::string bar(std::string_view what,
                         int percent,
                         std::string_view doing,
                         std::size_t columns);

 private:
  void finish(std::string_view mark, std::string_view colour, std::string_view result);

  bool terminal_;
  bool colours_;
  std::string what_{};
  base::SteadyTime started_{};
  base::SteadyTime drawn_{};
};

/// "progress 40 unpacking" → (40, "unpacking"); nothing for other lines. What the image scripts
/// print.
std::optional<std::pair<int, std::string>> parse_progress(std::string_view line);

}  // namespace cli
