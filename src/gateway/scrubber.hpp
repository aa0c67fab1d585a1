#pragma once

#include <cstddef>
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
  explicit Scrubber(std::string_view value);

  /// Takes the next bytes of a stream and gives those that are safe to pass on. Up to the longest
  /// pattern minus one byte is held back until more comes, or finish().
  std::string pass(std::string_view bytes);
  std::string finish();
  /// A whole text at once, such as a header's value.
  std::string scrub(std::string_view text);

  std::size_t hits() const noexcept { return hits_; }

 private:
  void overwrite(std::string& text);

  std::vector<std::string> patterns_;
  std::size_t longest_ = 0;
  std::string held_;
  std::size_t hits_ = 0;
};

}  // namespace gateway
