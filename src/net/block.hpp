#pragma once

#include <memory>
#include <span>
#include <vector>

namespace net {

/// A buffer for one read, which holds a whole TLS record. Not an array in a coroutine's frame:
/// frames of that size go through the slow part of the allocator, for each read of each request,
/// and would be filled with zeros besides. A thread keeps a few for the next reads.
class Block {
 public:
  static constexpr std::size_t bytes = 17 * 1024;

  Block();
  ~Block();
  Block(Block const&) = delete;
  Block& operator=(Block const&) = delete;

  std::span<char> span() noexcept { return {memory_.get(), bytes}; }

 private:
  std::unique_ptr<char[]> memory_;
};

}  // namespace net
