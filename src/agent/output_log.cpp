#include "agent/output_log.hpp"

#include <algorithm>

namespace agent {
namespace {
constexpr std::size_t chunk_bytes_max = 32 * 1024;
/// What a chunk costs beside its bytes: a command that alternates between its streams byte by byte
/// must not cost a hundred times its output.
constexpr std::size_t chunk_cost = 96;
}  // namespace

void OutputLog::append(OutputKind kind, std::string_view bytes) {
  // More than everything we keep at once: only its end can stay.
  if (bytes.size() > bytes_max_) {
    end_ += bytes.size() - bytes_max_;
    bytes.remove_prefix(bytes.size() - bytes_max_);
    clear();
  }
  while (!bytes.empty()) {
    bool const fits = !chunks_.empty() && chunks_.back().kind == kind &&
                      chunks_.back().bytes.size() < chunk_bytes_max;
    if (!fits) {
      make_room(chunk_cost + std::min(bytes.size(), chunk_bytes_max));
      chunks_.push_back({kind, end_, {}});
      cost_ += chunk_cost;
    }
    auto& last = chunks_.back();
    auto const part = bytes.substr(0, chunk_bytes_max - last.bytes.size());
    last.bytes.append(part);
    cost_ += part.size();
    end_ += part.size();
    bytes.remove_prefix(part.size());
  }
  make_room(0);
}

void OutputLog::make_room(std::size_t bytes) {
  while (chunks_.size() > 1 && cost_ + bytes > bytes_max_) {
    cost_ -= chunk_cost + chunks_.front().bytes.size();
    chunks_.pop_front();
  }
}

void OutputLog::clear() noexcept {
  chunks_.clear();
  cost_ = 0;
}

std::optional<OutputLog::Piece> OutputLog::piece_at(std::uint64_t offset,
                                                    std::size_t bytes_max) const {
  auto const chunk = std::ranges::upper_bound(chunks_, offset, {}, &Chunk::end);
  if (chunk == chunks_.end()) return std::nullopt;
  auto const skip = static_cast<std::size_t>(offset - std::min(offset, chunk->offset));
  return Piece{
      chunk->kind, chunk->offset + skip, std::string_view(chunk->bytes).substr(skip, bytes_max)};
}

bool OutputLog::keeps(std::uint64_t offset, std::size_t bytes) const noexcept {
  auto needed = cost_ + bytes + 2 * chunk_cost;
  for (auto const& chunk : chunks_) {
    if (needed <= bytes_max_) return true;
    if (chunk.end() > offset) return false;
    needed -= chunk_cost + chunk.bytes.size();
  }
  return needed <= bytes_max_;
}

std::size_t incomplete_tail(std::string_view text) noexcept {
  for (std::size_t back = 1; back <= std::min<std::size_t>(3, text.size()); ++back) {
    auto const byte = static_cast<unsigned char>(text[text.size() - back]);
    if (byte < 0x80) return 0;
    if (byte < 0xc0) continue;  // within a character
    std::size_t const length = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : 2;
    return back < length ? back : 0;
  }
  return 0;
}

}  // namespace agent
