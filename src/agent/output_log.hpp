#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>

namespace agent {

enum class OutputKind : std::uint8_t { standard_output, standard_error, terminal };

/// The last part of what a command wrote, all its streams in one order. Offsets count the bytes of
/// all streams together since the start, so that a reader can say where it was. Bounded: the oldest
/// bytes go first.
class OutputLog {
 public:
  struct Piece {
    OutputKind kind = OutputKind::standard_output;
    std::uint64_t offset = 0;
    std::string_view bytes;
  };

  explicit OutputLog(std::size_t bytes_max) : bytes_max_(bytes_max) {}

  void append(OutputKind kind, std::string_view bytes);

  /// Of the first byte that is still here; equal to end_offset() when nothing is.
  std::uint64_t begin_offset() const noexcept {
    return chunks_.empty() ? end_ : chunks_.front().offset;
  }

  std::uint64_t end_offset() const noexcept { return end_; }

  /// The bytes from `offset` on: of one stream, at most `bytes_max`. Nothing at the end. `offset`
  /// is not before begin_offset(). Valid until the next append.
  std::optional<Piece> piece_at(std::uint64_t offset, std::size_t bytes_max) const;
  /// Would `bytes` more leave everything from `offset` on in the log?
  bool keeps(std::uint64_t offset, std::size_t bytes) const noexcept;

  /// Forgets the bytes, not how many there were.
  void clear() noexcept;

  /// Memory in use, for the budget over all commands.
  std::size_t cost() const noexcept { return cost_; }

 private:
  struct Chunk {
    OutputKind kind;
    std::uint64_t offset;
    std::string bytes;

    std::uint64_t end() const noexcept { return offset + bytes.size(); }
  };

  void make_room(std::size_t bytes);

  std::size_t bytes_max_;
  std::deque<Chunk> chunks_;
  std::uint64_t end_ = 0;
  std::size_t cost_ = 0;
};

/// How many bytes at the end are the beginning of a UTF-8 character whose rest is missing (0 to 3).
std::size_t incomplete_tail(std::string_view text) noexcept;

}  // namespace agent
