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
  explicit Scrubber(std::vector<std::string> const& values)
      : Scrubber(std::vector<std::vector<std::string>>{values}) {}

  /// Of several owners, each with values. One search for all, since the value of one may be the
  /// beginning of another's.
  explicit Scrubber(std::vector<std::vector<std::string>> const& values_of_owners);
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

  /// Was a value of this owner found?
  bool found(std::size_t owner) const { return found_.at(owner); }

 private:
  struct Span {
    std::size_t begin = 0;
    std::size_t size = 0;
  };

  struct Pattern {
    Span span;
    std::size_t owner = 0;
  };

  void add_value(std::size_t owner, std::string_view value);
  void add(std::size_t owner, std::string_view pattern);
  void prepare_search();
  std::size_t longest_at(std::string_view text) const;
  void note_found(std::string_view match);
  std::string_view pattern(std::size_t number) const;
  std::size_t beginning_at_end(std::string_view text) const;
  /// Overwrites, of the matches that begin before `limit`, what lies before it. The first `covered`
  /// bytes belong to a match whose beginning is gone already. Where the last match ends.
  std::size_t overwrite(std::string& text, std::size_t covered, std::size_t limit);

  // A request has one of these: one text for all patterns, which is wiped, and no search structure
  // beyond a small table.
  std::string text_;
  std::vector<Pattern> patterns_;
  std::vector<bool> found_;  // by owner
  std::size_t longest_ = 0;
  std::size_t shortest_ = 0;
  std::size_t window_ = 0;
  std::array<std::uint8_t, 1024> skip_;  // by two bytes: how far the next match's end is at least
  std::array<bool, 256> begins_{};       // is it the first byte of a pattern
  std::string held_;                     // as it came: what follows may make a longer match of it
  std::size_t covered_ = 0;  // of it, the bytes at its front that are to be overwritten anyway
  std::size_t hits_ = 0;
};

}  // namespace gateway
