#include "cli/command_stream.hpp"

#include "wire/codec.hpp"

#include <gtest/gtest.h>

namespace cli {
namespace {

CommandEnd end_of_text(std::string_view text) {
  return end_of(wire::parse_json(text).value());
}

TEST(CommandEnd, IsWhatAShellWouldReturn) {
  EXPECT_EQ(end_of_text(R"({"exit_code":0,"exited":true,"status":"exit status 0"})").exit_code, 0);
  EXPECT_EQ(
      end_of_text(
          R"({"exit_code":42,"exited":true,"status":"exit status 42","error":"exit status 42"})")
          .exit_code,
      42);
  EXPECT_EQ(
      end_of_text(
          R"({"exit_code":-1,"exited":false,"status":"signal: killed","error":"signal: killed"})")
          .exit_code,
      137);
  EXPECT_EQ(end_of_text(R"x({"exit_code":-1,"status":"signal: segmentation fault (core dumped)"
})x")
                .exit_code,
            139);
  EXPECT_EQ(end_of_text(R"({"exit_code":-1,"status":"signal: signal 34"})").exit_code, 162);
  EXPECT_EQ(end_of_text(R"({"exit_code":-1,"status":"?"})").exit_code, 1);
}

TEST(CommandEnd, AnUnusualEndIsToldInWords) {
  EXPECT_EQ(
      end_of_text(R"({"exit_code":1,"status":"exit status 1","error":"exit status 1"})").complaint,
      "");
  EXPECT_EQ(
      end_of_text(
          R"({"exit_code":-1,"status":"signal: killed","error":"the guest ran out of memory"})")
          .complaint,
      "the guest ran out of memory");
}

}  // namespace
}  // namespace cli
