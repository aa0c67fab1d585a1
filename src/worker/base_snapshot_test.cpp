#include "worker/base_snapshot.hpp"

#include "worker/testing/fakes.hpp"

#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

namespace worker {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

constexpr std::uint64_t tsc_khz = 2'000'000;

class BaseSnapshots : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(files_.open(key_file(), "host one")); }

  std::string key_file() const { return dir_.path() + "/state.key"; }

  std::string kept() const { return dir_.path() + "/snapshots/base-" + files_.key_of(shape_); }

  std::string path(std::string const& name) const { return kept() + "/" + name; }

  void make() {
    auto recording = files_.begin(shape_);
    ASSERT_TRUE(recording);
    ASSERT_EQ(::pwrite(recording->memory.get(), "guest", 5, 1'000'000), 5);
    ASSERT_EQ(::write(recording->state.get(), "device state", 12), 12);
    std::ofstream(recording->dir + "/disk.img") << std::string(4096, 'd');
    auto const kept = files_.keep(*recording, tsc_khz);
    ASSERT_TRUE(kept) << kept.error().message();
  }

  /// Why it cannot be loaded; "" when it can.
  std::string problem() const {
    auto const loaded = files_.load(shape_, tsc_khz);
    return loaded ? "" : loaded.error().message();
  }

  static void overwrite(std::string const& file, off_t at, char byte) {
    ::chmod(file.c_str(), 0600);
    os::Fd const fd(::open(file.c_str(), O_RDWR | O_CLOEXEC));
    ASSERT_EQ(::pwrite(fd.get(), &byte, 1, at), 1);
  }

  testing::TempDir dir_;
  BaseFiles files_{dir_.path()};
  MachineShape shape_{"b1", vmm::Accelerator::tcg, 1, 2, 4};
};

TEST_F(BaseSnapshots, WhatIsKeptIsFoundAgain) {
  EXPECT_EQ(files_.load(shape_, tsc_khz).error().code(), base::Code::not_found);
  make();
  auto const loaded = files_.load(shape_, tsc_khz + 100);
  ASSERT_TRUE(loaded) << loaded.error().message();
  EXPECT_EQ((*loaded)->state, "device state");
  EXPECT_EQ((*loaded)->tsc_khz, tsc_khz);
  EXPECT_TRUE((*loaded)->check_unchanged());
  EXPECT_EQ(files_.shapes(), std::vector{shape_});
  auto other = shape_;
  other.memory_mib = 4;
  EXPECT_EQ(files_.load(other, tsc_khz).error().code(), base::Code::not_found);
  struct stat about{};
  ASSERT_EQ(::stat(key_file().c_str(), &about), 0);
  EXPECT_EQ(about.st_mode & 0777U, 0600U);
}

TEST_F(BaseSnapshots, EachKindOfDamageIsNamedAndRefused) {
  struct Damage {
    std::string name;
    std::function<void()> act;
    std::string what;
  };

  std::vector<Damage> const damages{
      {"a byte of memory",
       [&] { overwrite(path("memory"), 1'000'001, 'X'); },
       "memory file is damaged"},
      {"memory where nothing was",
       [&] { overwrite(path("memory"), 5000, 'X'); },
       "memory file is damaged"},
      {"shorter memory",
       [&] { fs::resize_file(path("memory"), 1 << 20); },
       "memory file has the wrong size"},
      {"a byte of the state", [&] { overwrite(path("state"), 3, 'X'); }, "device state is damaged"},
      {"a shorter state", [&] { fs::resize_file(path("state"), 5); }, "device state is damaged"},
      {"no state", [&] { fs::remove(path("state")); }, "device state is damaged"},
      {"another disk", [&] { fs::resize_file(path("disk.img"), 100); }, "disk was changed"},
      {"a written disk", [&] { overwrite(path("disk.img"), 7, 'X'); }, "disk was changed"},
      {"no disk", [&] { fs::remove(path("disk.img")); }, "missing"},
      {"an edited manifest",
       [&] {
         std::ifstream in(path("manifest.json"));
         std::string text(std::istreambuf_iterator<char>(in), {});
         auto const at = text.find("vcpus");
         ASSERT_NE(at, std::string::npos);
         text[at] = 'w';
         std::ofstream(path("manifest.json")) << text;
       },
       "not written by this host"},
      {"no manifest", [&] { std::ofstream(path("manifest.json")) << "{}"; }, "manifest is damaged"},
  };
  for (auto const& damage : damages) {
    make();
    ASSERT_EQ(problem(), "");
    damage.act();
    EXPECT_THAT(problem(), HasSubstr(damage.what)) << damage.name;
    files_.set_aside(shape_, damage.what);
    EXPECT_EQ(files_.load(shape_, tsc_khz).error().code(), base::Code::not_found);
  }
  auto const aside = dir_.path() + "/snapshots/aside-" + files_.key_of(shape_);
  EXPECT_TRUE(fs::exists(aside + "/reason"));
  EXPECT_FALSE(fs::exists(aside + "/memory")) << "it would fill the pool";
}

TEST_F(BaseSnapshots, ChangesAfterTheLoadAreNoticed) {
  make();
  auto const loaded = files_.load(shape_, tsc_khz);
  ASSERT_TRUE(loaded);
  fs::create_hard_link(path("memory"), dir_.path() + "/link");
  EXPECT_TRUE((*loaded)->check_unchanged()) << "another name changes nothing";
  fs::resize_file(path("memory"), 1 << 20);
  EXPECT_FALSE((*loaded)->check_unchanged());
}

TEST_F(BaseSnapshots, ACounterOfAnotherRateIsRefused) {
  make();
  auto const loaded = files_.load(shape_, tsc_khz + tsc_khz / 100);
  ASSERT_FALSE(loaded);
  EXPECT_THAT(loaded.error().message(), HasSubstr("another rate"));
}

TEST_F(BaseSnapshots, AnotherHostsKeyOrAnUpgradeMakesThemUseless) {
  make();
  BaseFiles stranger(dir_.path());
  ASSERT_TRUE(stranger.open(dir_.path() + "/other.key", "host one"));
  auto const refused = stranger.load(shape_, tsc_khz);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message(), HasSubstr("not written by this host"));
  EXPECT_TRUE(fs::exists(kept())) << "it may be damaged, and is named when it is wanted";
  BaseFiles upgraded(dir_.path());
  ASSERT_TRUE(upgraded.open(key_file(), "host two"));
  EXPECT_FALSE(fs::exists(kept())) << "nobody can use it any more";
  EXPECT_TRUE(upgraded.shapes().empty());
}

TEST_F(BaseSnapshots, WhatWasHalfMadeIsRemovedAndReplacedAtTheNextTry) {
  auto const half = files_.begin(shape_);
  ASSERT_TRUE(half);
  ASSERT_TRUE(files_.begin(shape_)) << "a second try takes its place";
  BaseFiles next(dir_.path());
  ASSERT_TRUE(next.open(key_file(), "host one"));
  EXPECT_FALSE(fs::exists(half->dir));
}

TEST_F(BaseSnapshots, AKeyThatOthersMayReadIsRefused) {
  ::chmod(key_file().c_str(), 0644);
  BaseFiles next(dir_.path());
  auto const opened = next.open(key_file(), "host one");
  ASSERT_FALSE(opened);
  EXPECT_THAT(opened.error().message(), HasSubstr("key"));
}

}  // namespace
}  // namespace worker
