#include "hostd/slot_files.hpp"

#include "os/text_file.hpp"

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

namespace hostd {
namespace {

class SlotFilesTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = std::filesystem::temp_directory_path() / "slot_files.XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
    std::filesystem::create_directory(directory_ + "/slots");
  }

  void TearDown() override { std::filesystem::remove_all(directory_); }

  void write(std::string const& name, std::string const& text) const {
    std::ofstream(directory_ + "/slots/7/" + name) << text;
  }

  std::string directory_;
};

TEST_F(SlotFilesTest, ARecordComesBackAsItWasWritten) {
  SlotFiles const files(directory_, 7);
  ASSERT_TRUE(files.make());
  EXPECT_FALSE(files.record());
  SlotRecord const record{.sandbox = "i0123456789abcdefghij",
                          .epoch = 18'446'744'073'709'551'615ULL};
  ASSERT_TRUE(files.write_record(record));
  EXPECT_EQ(files.record(), record);
  EXPECT_FALSE(std::filesystem::exists(directory_ + "/slots/7/record.new"));
  ASSERT_TRUE(files.remove_record());
  EXPECT_FALSE(files.record());
}

TEST_F(SlotFilesTest, WhatIsNotARecordIsNone) {
  SlotFiles const files(directory_, 7);
  ASSERT_TRUE(files.make());
  for (char const* text : {"",
                           "\n",
                           "i0123456789abcdefghij",
                           "i0123456789abcdefghij 1",
                           "i0123456789abcdefghij x\n",
                           "i0123456789abcdefghij 1 2\n",
                           "i0123456789abcdefghij -1\n",
                           "../../x 1\n",
                           "i0123456789abcdefghij 99999999999999999999999\n"}) {
    write("record", text);
    EXPECT_FALSE(files.record()) << text;
  }
  write("record", std::string(4096, 'i'));
  EXPECT_FALSE(files.record());
}

TEST_F(SlotFilesTest, ASpentSlotRemembersHowItsMachineEnded) {
  SlotFiles const files(directory_, 7);
  ASSERT_TRUE(files.make());
  EXPECT_FALSE(files.spent());
  ASSERT_TRUE(files.mark_spent({.wait_status = 9, .out_of_memory = true}));
  ASSERT_TRUE(files.spent());
  EXPECT_EQ(files.spent()->wait_status, 9);
  EXPECT_TRUE(files.spent()->out_of_memory);
  // A damaged file: the end is unknown, the slot is spent all the same.
  write("spent", "");
  ASSERT_TRUE(files.spent());
  EXPECT_EQ(files.spent()->wait_status, -1);
}

TEST_F(SlotFilesTest, RemovingTakesEverythingAndMayBeRepeated) {
  SlotFiles const files(directory_, 7);
  ASSERT_TRUE(files.make());
  for (char const* name :
       {"record", "record.new", "spent", "spent.new", "qmp.sock", "console.sock"})
    write(name, "x");
  ASSERT_TRUE(files.remove());
  EXPECT_FALSE(std::filesystem::exists(directory_ + "/slots/7"));
  ASSERT_TRUE(files.remove());
}

TEST_F(SlotFilesTest, OnlyPlainNumbersNameASlot) {
  for (char const* name : {"0", "7", "4095", "07", "4096", "-1", "x", "1x", "999999999999"}) {
    std::filesystem::create_directory(directory_ + "/slots/" + name);
  }
  auto numbers = numbered_entries(directory_ + "/slots");
  std::ranges::sort(numbers);
  EXPECT_EQ(numbers, (std::vector<std::uint32_t>{0, 7, 4095}));
  EXPECT_TRUE(numbered_entries(directory_ + "/absent").empty());
}

}  // namespace
}  // namespace hostd
