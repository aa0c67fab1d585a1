#include "agent/multipart.hpp"

#include <gtest/gtest.h>

namespace agent {
namespace {

struct Part {
  std::string name;
  std::string filename;
  std::string content;
  friend bool operator==(Part const&, Part const&) = default;
};

std::ostream& operator<<(std::ostream& out, Part const& part) {
  return out << part.name << "|" << part.filename << "|" << part.content;
}

struct Parsed {
  std::vector<Part> parts;
  bool finished = false;
  std::string problem;
};

Parsed parse(std::string_view body, std::string_view boundary, std::size_t step) {
  MultipartParser parser(boundary);
  Parsed out;
  bool open = false;
  for (std::size_t at = 0; at <= body.size(); at += step) {
    parser.feed(body.substr(at, step));
    for (;;) {
      auto const event = parser.next();
      if (!event) {
        out.problem = event.error().message();
        return out;
      }
      using Kind = MultipartParser::Kind;
      if (event->kind == Kind::need_more) break;
      if (event->kind == Kind::finished) {
        EXPECT_FALSE(open);
        out.finished = true;
        break;
      }
      if (event->kind == Kind::part_begins) {
        EXPECT_FALSE(open);
        open = true;
        out.parts.push_back({event->name, event->filename, ""});
      } else if (event->kind == Kind::content) {
        EXPECT_TRUE(open);
        EXPECT_FALSE(event->content.empty());
        out.parts.back().content += event->content;
      } else {
        EXPECT_TRUE(open);
        open = false;
      }
    }
  }
  return out;
}

/// As httpx 0.28 writes two files, the second with awkward bytes.
std::string const httpx_body =
    "--b0undary\r\nContent-Disposition: form-data; name=\"file\"; filename=\"/home/user/we ird "
    "%22q%22 ü.txt\"\r\n"
    "Content-Type: text/plain\r\n\r\nhello\r\nworld\r\n--b0undary\r\n"
    "Content-Disposition: form-data; name=\"file\"; filename=\"a/b/c.bin\"\r\nContent-Type: "
    "application/octet-stream\r\n\r\n"
    "\r\n--b0undar\r\n--b0undarx\r--\r\n--b0undary--\r\n";
std::vector<Part> const httpx_parts{{"file", "/home/user/we ird \"q\" ü.txt", "hello\r\nworld"},
                                    {"file", "a/b/c.bin", "\r\n--b0undar\r\n--b0undarx\r--"}};

TEST(Multipart, IsTheSameHoweverTheBytesArrive) {
  for (std::size_t step = 1; step <= httpx_body.size(); ++step) {
    auto const parsed = parse(httpx_body, "b0undary", step);
    EXPECT_EQ(parsed.problem, "") << step;
    EXPECT_TRUE(parsed.finished) << step;
    EXPECT_EQ(parsed.parts, httpx_parts) << step;
  }
}

TEST(Multipart, EmptyFilesPreambleAndEpilogue) {
  auto const body =
      "this is to be ignored\r\n--x  \r\nContent-Disposition: form-data; name=file; "
      "filename=empty\r\n\r\n\r\n--x\r\n\r\nno head\r\n"
      "--x--\r\nalso ignored\r\n--x\r\n";
  for (std::size_t const step : {1U, 3U, 1000U}) {
    auto const parsed = parse(body, "x", step);
    EXPECT_TRUE(parsed.finished) << parsed.problem;
    EXPECT_EQ(parsed.parts, (std::vector<Part>{{"file", "empty", ""}, {"", "", "no head"}}));
  }
}

TEST(Multipart, NamesInEverySpelling) {
  auto const name_of = [](std::string const& disposition) {
    auto const parsed =
        parse("--x\r\ncontent-DISPOSITION:" + disposition + "\r\n\r\n.\r\n--x--", "x", 1000);
    return parsed.parts.empty() ? "error: " + parsed.problem : parsed.parts[0].filename;
  };
  EXPECT_EQ(name_of(R"( form-data; name="file"; filename="a;b=c.txt")"), "a;b=c.txt");
  EXPECT_EQ(name_of(R"( form-data; filename="say \"hi\" c:\\dir\file")"),
            R"(say "hi" c:\dir\file)");
  EXPECT_EQ(name_of(R"( form-data; filename="100%41 %22 %0D%0a")"), "100%41 \" \r\n");
  EXPECT_EQ(name_of(R"( form-data; filename="fallback"; filename*=UTF-8''%e2%82%ac%20x)"), "€ x");
  EXPECT_EQ(name_of(R"( form-data; filename*=UTF-8''%zz; filename="fallback")"), "fallback");
  EXPECT_EQ(name_of(R"( form-data; filename = plain )"), "plain");
  EXPECT_TRUE(name_of(R"( form-data; filename="open)").starts_with("error:"));
}

TEST(Multipart, BoundsHold) {
  auto const long_head =
      "--x\r\nX: " + std::string(MultipartParser::part_head_bytes_max, 'a') + "\r\n\r\n.\r\n--x--";
  EXPECT_NE(parse(long_head, "x", 1000).problem, "");
  EXPECT_NE(parse("--x\r\nX: " + std::string(100'000, 'a'), "x", 1000).problem,
            "");  // a head without end
  std::string many;
  for (std::size_t i = 0; i <= MultipartParser::parts_max; ++i)
    many += "--x\r\n\r\n\r\n";
  EXPECT_NE(parse(many, "x", 100'000).problem, "");
}

TEST(Multipart, BrokenBodiesNeverFinish) {
  for (std::string const body : {"",
                                 "--x",
                                 "--x\r\n",
                                 "--x\r\nContent-Disposition: form-data\r\n\r\ncontent",
                                 "--x\r\n\r\ncontent\r\n--x",
                                 "no boundary at all"})
    EXPECT_FALSE(parse(body, "x", 2).finished) << body;
  EXPECT_NE(parse("--x\r\nno colon\r\n\r\n.\r\n--x--", "x", 1000).problem, "");
  EXPECT_NE(parse("--xy\r\n\r\n.\r\n--x--", "x", 1000).problem, "");
}

TEST(MultipartBoundary, IsReadFromTheContentType) {
  EXPECT_EQ(multipart_boundary("multipart/form-data; boundary=abc"), "abc");
  EXPECT_EQ(multipart_boundary("Multipart/Form-Data; charset=utf-8; Boundary=\"a b;c\""), "a b;c");
  EXPECT_EQ(multipart_boundary("multipart/form-data"), std::nullopt);
  EXPECT_EQ(multipart_boundary("multipart/form-data; boundary="), std::nullopt);
  EXPECT_EQ(multipart_boundary("application/json; boundary=abc"), std::nullopt);
  EXPECT_EQ(multipart_boundary("multipart/form-data; boundary=" + std::string(201, 'a')),
            std::nullopt);
}

}  // namespace
}  // namespace agent
