#include "net/block.hpp"

namespace net {
namespace {

constexpr std::size_t kept_max = 4;

std::vector<std::unique_ptr<char[]>>& kept() {
  thread_local std::vector<std::unique_ptr<char[]>> blocks;
  return blocks;
}

}  // namespace

Block::Block() {
  auto& blocks = kept();
  if (blocks.empty()) {
    memory_ = std::make_unique_for_overwrite<char[]>(bytes);
  } else {
    memory_ = std::move(blocks.back());
    blocks.pop_back();
  }
}

Block::~Block() {
  auto& blocks = kept();
  if (blocks.size() < kept_max) blocks.push_back(std::move(memory_));
}

}  // namespace net
