#include "wire/codec.hpp"

#include <gtest/gtest.h>

namespace wire {
namespace {

enum class Phase { pending, running };
BOOST_DESCRIBE_ENUM(Phase, pending, running)

struct Mount {
  std::string path;

  static bool required(std::string_view name) { return name == "path"; }
};
BOOST_DESCRIBE_STRUCT(Mount, (), (path))

struct Spec {
  std::string image;
  std::uint16_t port = 80;
  std::optional<std::string> note;
  std::vector<Mount> mounts;
  std::map<std::string, std::string> env;
  Phase phase = Phase::pending;

  static bool required(std::string_view name) { return name == "image"; }

  std::string check() const { return port == 0 ? "port: must not be 0" : ""; }
};
BOOST_DESCRIBE_STRUCT(Spec, (), (image, port, note, mounts, env, phase))

std::string problem_of(std::string_view text) {
  auto const result = decode_text<Spec>(text);
  return result ? "" : result.error().message();
}

TEST(Codec, RoundTrips) {
  auto const spec = decode_text<Spec>(
      R"({"image":"a","mounts":[{"path":"/x"}],"env":{"A":"b"},"phase":"running"})");
  ASSERT_TRUE(spec) << spec.error().message();
  EXPECT_EQ(
      encode_text(*spec),
      R"({"image":"a","port":80,"mounts":[{"path":"/x"}],"env":{"A":"b"},"phase":"running"})");
}

TEST(Codec, ErrorsNameThePlace) {
  EXPECT_EQ(problem_of(R"({})"), "image: required");
  EXPECT_EQ(problem_of(R"({"image":"a","mounts":[{"path":"/"},{"path":1}]})"),
            "mounts[1].path: expected a string");
  EXPECT_EQ(problem_of(R"({"image":"a","mounts":[{}]})"), "mounts[0].path: required");
  EXPECT_EQ(problem_of(R"({"image":"a","port":70000})"), "port: expected an integer in range");
  EXPECT_EQ(problem_of(R"({"image":"a","phase":"x"})"), "phase: expected one of: pending, running");
  EXPECT_EQ(problem_of(R"({"image":"a","nope":1})"), "body: unknown field \"nope\"");
  EXPECT_EQ(problem_of(R"({"image":"a","port":0})"), "port: must not be 0");
  EXPECT_EQ(problem_of(R"([])"), "body: expected an object");
  EXPECT_NE(problem_of(R"({)"), "");
}

struct WithDefaults {
  std::vector<std::string> names = {"a", "b"};
  std::map<std::string, std::string> pairs = {{"a", "b"}};
};
BOOST_DESCRIBE_STRUCT(WithDefaults, (), (names, pairs))

TEST(Codec, AGivenListReplacesTheDefaultOne) {
  auto const given = decode_text<WithDefaults>(R"({"names":["c"],"pairs":{}})");
  ASSERT_TRUE(given);
  EXPECT_EQ(given->names, std::vector<std::string>{"c"});
  EXPECT_TRUE(given->pairs.empty());
  EXPECT_EQ(decode_text<WithDefaults>("{}")->names.size(), 2U);
}

TEST(Codec, DeepNestingIsRefused) {
  std::string text(100, '[');
  EXPECT_FALSE(parse_json(text + std::string(100, ']')));
}

}  // namespace
}  // namespace wire
