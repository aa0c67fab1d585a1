#include "worker/engine.hpp"

#include <filesystem>

#include <gtest/gtest.h>
#include <unistd.h>

namespace worker {
namespace {

class Engine : public testing::Test {
 protected:
  Engine()
      : directory_(std::filesystem::temp_directory_path() / fmt::format("engine-{}", ::getpid())) {
    std::filesystem::create_directory(directory_);
  }

  ~Engine() override { std::filesystem::remove_all(directory_); }

  EngineChoice opened(std::string const& guest) const {
    EngineChoice choice(directory_ / "engine.json");
    choice.open(guest);
    return choice;
  }

  std::filesystem::path directory_;
};

TEST_F(Engine, FirecrackerIsTriedOnlyWhereItCanRun) {
  auto const fresh = opened("guest");
  EXPECT_EQ(fresh.engine(), vmm::Engine::qemu);
  EXPECT_TRUE(fresh.to_be_tried(true, std::nullopt));
  EXPECT_TRUE(fresh.to_be_tried(true, vmm::Accelerator::kvm));
  EXPECT_FALSE(fresh.to_be_tried(true, vmm::Accelerator::tcg));
  EXPECT_FALSE(fresh.to_be_tried(false, std::nullopt));
}

TEST_F(Engine, WhatABootHasShownHoldsForThisGuestAndThisLifeOfTheKernel) {
  for (bool const works : {true, false}) {
    auto choice = opened("guest");
    ASSERT_TRUE(choice.record(works, "why"));
    auto const again = opened("guest");
    EXPECT_EQ(again.engine(), works ? vmm::Engine::firecracker : vmm::Engine::qemu);
    EXPECT_EQ(again.sentence(), "why");
    EXPECT_FALSE(again.to_be_tried(true, std::nullopt));
    auto const other = opened("another guest");
    EXPECT_EQ(other.engine(), vmm::Engine::qemu);
    EXPECT_TRUE(other.to_be_tried(true, std::nullopt));
  }
}

}  // namespace
}  // namespace worker
