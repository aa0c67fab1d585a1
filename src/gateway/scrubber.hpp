#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace gateway {

/// Finds an injected credential in what an upstream sends back, in the encodings that echo
/// endpoints really use: as it is, percent- and JSON-escaped, hex, base64 and base64url at all
/// three alignments; also split over chunks. Hits are overwritten with '*', the length stays. Other
/// encodings (compressed, reversed, encrypted) are not covered: narrow bindings are the real
/// defence.
class Scrubber {
 public:
  /// Values below 8 bytes are not looked for: they would match by chance.
  explicit Scrubber(std::string_view value)
      : Scrubber(std::vector<std::string>{std::string(value)}) {}

  /// Looks for several values at once.
  explicit Scrubber(std::vector<std::string> const& values);
  ~Scrubber();
  Scrubber(Scrubber const&) = delete;
  Scrubber& operator=(Scrubber const&) = delete;

  /// Takes the next bytes of a stream and gives those that are safe to pass on. Only an end that
  /// could be the beginning of a pattern is held back until more comes, or finish(): the last event
  /// of a stream is not kept waiting for the next one.
  std::string pass(std::string_view bytes);
  std::string finish();
  /// A whole text at once, such as a header's value.
  std::string scrub(std::string_view text);

  /// Is a value in it? Counts as a hit.
  bool finds(std::string_view text);

  std::size_t hits() const noexcept { return hits_; }

 private:
  struct Span {
    std::size_t begin = 0;
    std::size_t size = 0;
  };

  void add_value(std::string_view value);
  void add(std::string_view pattern);
  void prepare_search();
  std::size_t longest_at(std::string_view text) const;
  std::string_view pattern(std::size_t number) const;
  std::size_t beginning_at_end(std::string_view text) const;
  void overwrite(std::string& text);

  // A request has one of these: one text for all patterns, which is wiped, and no search structure
  // beyond a small table.
  std::string text_;
  std::vector<Span> patterns_;
  std::size_t longest_ = 0;
  std::size_t shortest_ = 0;
  std::size_t window_ = 0;
  std::array<std::uint8_t, 1024> skip_;  // by two bytes: how far the next match's end is at least
  std::array<bool, 256> begins_{};       // is it the first byte of a pattern
  std::string held_;
  std::size_t hits_ = 0;
};

}  // namespace gateway
