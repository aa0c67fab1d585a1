#include "agent/files.hpp"

#include "agent/gzip.hpp"
#include "agent/testing.hpp"

#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/xattr.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include <sched.h>

namespace agent {
namespace {

namespace fs = std::filesystem;
using testing::Answer;
using testing::Guest;
using testing::HeaderList;
using testing::with_guest;

std::string content_of(std::string const& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream out;
  out << file.rdbuf();
  return std::move(out).str();
}

void put(std::string const& path, std::string const& content) {
  std::ofstream(path, std::ios::binary) << content;
}

std::string gzipped(std::string_view text) {
  GzipEncoder encoder;
  std::string out;
  encoder.add(text, GzipEncoder::Last::yes, out);
  return out;
}

std::string gunzipped(std::string_view bytes) {
  GzipDecoder decoder;
  std::string out;
  EXPECT_TRUE(decoder.take(bytes, 64 << 20, out));
  EXPECT_TRUE(decoder.complete());
  return out;
}

asio::awaitable<Answer> post_raw(Guest& guest,
                                 std::string query,
                                 std::string body,
                                 HeaderList headers = {}) {
  headers.emplace_back("content-type", "application/octet-stream");
  co_return co_await guest.request("POST", "/files?" + query, std::move(headers), std::move(body));
}

struct FormFile {
  std::string filename;
  std::string content;
};

asio::awaitable<Answer> post_form(Guest& guest,
                                  std::string query,
                                  std::vector<FormFile> files,
                                  HeaderList headers = {}) {
  std::string body;
  for (auto const& file : files)
    body += "--bb\r\nContent-Disposition: form-data; name=\"file\"; filename=\"" + file.filename +
            "\"\r\n\r\n" + file.content + "\r\n";
  body += "--bb--\r\n";
  headers.emplace_back("content-type", "multipart/form-data; boundary=bb");
  co_return co_await guest.request("POST", "/files" + query, std::move(headers), std::move(body));
}

TEST(FilesUpload, OneFileWithThePathInTheQuery) {
  with_guest([](Guest& guest) -> asio::awaitable<void> {
    auto const answer =
        co_await post_form(guest, "?path=sub%2Fdir%2Fa+b.txt", {{"ignored.txt", "hello"}});
    auto const path = guest.etc.home() + "/sub/dir/a b.txt";
    EXPECT_EQ(answer.status, 200);
    // The whole text: the SDK of the time fails on any further key.
    EXPECT_EQ(answer.body, R"([{"name":"a b.txt","type":"file","path":")" + path + R"("}])");
    EXPECT_EQ(content_of(path), "hello");
    struct stat status{};
    EXPECT_EQ(::stat((guest.etc.home() + "/sub").c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 07777U, 0755U);
  });
}

TEST(FilesUpload, ManyFilesWithPathsAsNames) {
  with_guest([](Guest& guest) -> asio::awaitable<void> {
    auto const absolute = guest.etc.home() + "/x/y/z.bin";
    auto const answer = co_await post_form(
        guest,
        "",
        {{"we ird %22q%22 ü.txt", "1"}, {absolute, std::string("\0\r\n--", 5)}, {"empty", ""}});
    EXPECT_EQ(answer.status, 200);
    EXPECT_EQ(answer.json().as_array().size(), 3U);
    EXPECT_EQ(content_of(guest.etc.home() + "/we ird \"q\" ü.txt"), "1");
    EXPECT_EQ(content_of(absolute), std::string("\0\r\n--", 5));
    EXPECT_TRUE(fs::is_empty(guest.etc.home() + "/empty"));
    auto const none = co_await post_form(guest, "", {});
    EXPECT_EQ(none.body, "[]");
    auto const twice = co_await post_form(guest, "", {{"t", "first"}, {"t", "second"}});
    EXPECT_EQ(twice.status, 400);
    EXPECT_EQ(content_of(guest.etc.home() + "/t"), "first");
  });
}

TEST(FilesUpload, AWholeBodyPlainAndCompressed) {
  with_guest([](Guest& guest) -> asio::awaitable<void> {
    std::string big;
    while (big.size() < (1U << 20))
      big += std::to_string(big.size() * 31);
    auto const plain = co_await post_raw(guest, "path=big", big);
    EXPECT_EQ(plain.status, 200);
    EXPECT_TRUE(content_of(guest.etc.home() + "/big") == big);
    auto const packed =
        co_await post_raw(guest, "path=packed", gzipped(big), {{"content-encoding", "gzip"}});
    EXPECT_EQ(packed.status, 200);
    EXPECT_TRUE(content_of(guest.etc.home() + "/packed") == big);
    auto const form = co_await post_raw(guest, "path=none", "x", {{"content-encoding", "br"}});
    EXPECT_EQ(form.status, 400);
    auto const cut = co_await post_raw(
        guest, "path=cut", gzipped(big).substr(0, 5000), {{"content-encoding", "gzip"}});
    EXPECT_EQ(cut.status, 400);
    EXPECT_FALSE(fs::exists(guest.etc.home() + "/cut"));  // half of a new file is worse than none
    auto const no_path = co_await guest.request(
        "POST", "/files", {{"content-type", "application/octet-stream"}}, "x");
    EXPECT_EQ(no_path.status, 400);
  });
}

TEST(FilesUpload, AnExistingFileKeepsItsModeAndItsInode) {
  with_guest([](Guest& guest) -> asio::awaitable<void> {
    auto const path = guest.etc.home() + "/script";
    put(path, "a long old content");
    EXPECT_EQ(::chmod(path.c_str(), 0751), 0);
    struct stat before{};
    EXPECT_EQ(::stat(path.c_str(), &before), 0);
    auto const answer = co_await post_raw(guest, "path=script", "new");
    EXPECT_EQ(answer.status, 200);
    struct stat after{};
    EXPECT_EQ(::stat(path.c_str(), &after), 0);
    EXPECT_EQ(content_of(path), "new");
    EXPECT_EQ(after.st_mode, before.st_mode);
    EXPECT_EQ(after.st_ino, before.st_ino);
  });
}

TEST(FilesUpload, PermissionBitsAreGivenWhereTheCallerSaysSo) {
  with_guest([](Guest& guest) -> asio::awaitable<void> {
    auto const path = guest.etc.home() + "/run.sh";
    auto const mode_of_it = [&] {
      struct stat status{};
      EXPECT_EQ(::stat(path.c_str(), &status), 0);
      return status.st_mode & 07777U;
    };
    auto const made = co_await post_raw(guest, "path=run.sh&mode=488", "new");
    EXPECT_EQ(made.status, 200);
    EXPECT_EQ(mode_of_it(), 0750U);
    auto const again = co_await post_raw(guest, "path=run.sh&mode=292", "newer");
    EXPECT_EQ(again.status, 200);
    EXPECT_EQ(mode_of_it(), 0444U) << "of one that was there, too";
    for (auto const* wrong : {"512", "2541", "-1", "", "x", "0x1"}) {
      auto const bad = co_await post_raw(guest, std::string("path=run.sh&mode=") + wrong, "no");
      EXPECT_EQ(bad.status, 400) << wrong;
    }
    EXPECT_EQ(content_of(path), "newer");
  });
}

TEST(FilesUpload, WhatIsNoFileIsRefused) {
  with_guest([](Guest& guest) -> asio::awaitable<void> {
    auto const home = guest.etc.home();
    fs::create_directory(home + "/dir");
    EXPECT_EQ(::mkfifo((home + "/pipe").c_str(), 0666), 0);
    put(home + "/plain", "x");
    auto const directory = co_await post_raw(guest, "path=dir", "x");
    EXPECT_EQ(directory.status, 400);
    EXPECT_EQ(directory.body,
              R"({"code":400,"message":"path is a directory: )" + home + R"(/dir"})");
    auto const pipe = co_await post_raw(guest, "path=pipe", "x");
    EXPECT_EQ(pipe.status, 400);
    auto const below_a_file = co_await post_raw(guest, "path=plain/x", "x");
    EXPECT_EQ(below_a_file.status, 400);
    auto const slash =
        co_await post_raw(guest, "path=" + http::percent_encode(home + "/new/"), "x");
    EXPECT_EQ(slash.status, 400);
    auto const nul = co_await post_raw(guest, "path=a%00b", "x");
    EXPECT_EQ(nul.status, 400);
    auto const tilde = co_await post_raw(guest, "path=~other/x", "x");
    EXPECT_EQ(tilde.status, 400);
    auto const type =
        co_await guest.request("POST", "/files?path=x", {{"content-type", "text/plain"}}, "x");
    EXPECT_EQ(type.status, 400);
    auto const broken =
        co_await guest.request("POST",
                               "/files?path=x",
                               {{"content-type", "multipart/form-data; boundary=b"}},
                               "--b\r\n\r\n");
    EXPECT_EQ(broken.status, 400);
  });
}

/// In a process of its own, whose mounts vanish with it: a file system of one MiB, and an upload
/// that is larger.
[[noreturn]] void fill_a_disk() {
  auto failed = [](char const* what) {
    std::perror(what);
    std::exit(2);
  };
  if (::unshare(CLONE_NEWNS) != 0) failed("unshare");
  if (::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) failed("private mounts");
  with_guest([&](Guest& guest) -> asio::awaitable<void> {
    if (::mount("tmpfs", guest.etc.home().c_str(), "tmpfs", 0, "size=1m,mode=0777") != 0)
      failed("tmpfs");
    auto const whole = co_await post_raw(guest, "path=fits", std::string(300'000, 'x'));
    EXPECT_EQ(whole.status, 200);
    auto const answer = co_await post_raw(guest, "path=too/large", std::string(2'000'000, 'x'));
    EXPECT_EQ(answer.status, 507);
    EXPECT_NE(answer.body.find("not enough disk space"), std::string::npos) << answer.body;
    EXPECT_FALSE(fs::exists(guest.etc.home() + "/too/large"));
    auto const form =
        co_await post_form(guest, "", {{"small", "1"}, {"large", std::string(2'000'000, 'x')}});
    EXPECT_EQ(form.status, 507);
    auto const again = co_await post_raw(guest, "path=fits2", std::string(300'000, 'x'));
    EXPECT_EQ(again.status, 200);
    EXPECT_EQ(::umount2(guest.etc.home().c_str(), MNT_DETACH), 0);
  });
  std::exit(::testing::Test::HasFailure() ? 1 : 0);
}

TEST(FilesUploadDeathTest, AFullDiskIs507AndLeavesNothingNew) {
  if (::geteuid() != 0) GTEST_SKIP() << "mounting a small file system needs root";
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(fill_a_disk(), ::testing::ExitedWithCode(0), "");
}

TEST(FilesUpload, MetadataBecomesAttributes) {
  {
    testing::Etc const etc;
    if (::setxattr(etc.home().c_str(), "user.test", "x", 1, 0) != 0)
      GTEST_SKIP() << "the temporary directory has no extended attributes";
  }
  with_guest([](Guest& guest) -> asio::awaitable<void> {
    auto const path = guest.etc.home() + "/m";
    auto const first = co_await post_raw(
        guest, "path=m", "x", {{"X-Metadata-Author", "me"}, {"x-metadata-kind", "a b"}});
    EXPECT_EQ(first.status, 200);
    EXPECT_EQ(first.body,
              R"([{"name":"m","type":"file","path":")" + path +
                  R"(","metadata":{"author":"me","kind":"a b"}}])");
    char value[16] = {};
    EXPECT_EQ(::getxattr(path.c_str(), "user.e2b.author", value, sizeof value), 2);
    EXPECT_EQ(std::string(value), "me");
    auto const second = co_await post_raw(guest, "path=m", "y", {{"X-Metadata-Kind", "other"}});
    EXPECT_EQ(second.status, 200);
    EXPECT_EQ(::getxattr(path.c_str(), "user.e2b.author", value, sizeof value), -1);
    auto const plain = co_await post_raw(guest, "path=m", "z");
    EXPECT_EQ(plain.body, R"([{"name":"m","type":"file","path":")" + path + R"("}])");
    EXPECT_EQ(::getxattr(path.c_str(), "user.e2b.kind", value, sizeof value), -1);
  });
}

TEST(FilesUpload, MetadataHasBounds) {
  EXPECT_TRUE(metadata_headers({{"X-Metadata-" + std::string(246, 'k'), "v"}}));
  EXPECT_FALSE(metadata_headers({{"X-Metadata-" + std::string(247, 'k'), "v"}}));
  EXPECT_FALSE(metadata_headers({{"X-Metadata-", "v"}}));
  EXPECT_FALSE(metadata_headers({{"X-Metadata-a", "\xc3\xbc"}}));
  EXPECT_FALSE(metadata_headers({{"X-Metadata-a", std::string(4096, 'v')}}));
  EXPECT_TRUE(metadata_headers(
      {{"X-Metadata-a", std::string(4095, 'v')}, {"X-Other", std::string(9999, 'v')}}));
}

TEST(FilesDownload, WholeFilesWithTheirHeaders) {
  with_guest([](Guest& guest) -> asio::awaitable<void> {
    put(guest.etc.home() + "/a b.txt", "héllo");
    auto const answer = co_await guest.get("/files?path=a+b.txt");
    EXPECT_EQ(answer.status, 200);
    EXPECT_EQ(answer.body, "héllo");
    EXPECT_EQ(answer.headers.get("content-type"), "text/plain; charset=utf-8");
    EXPECT_EQ(answer.headers.get("content-disposition"), "inline; filename=\"a b.txt\"");
    EXPECT_EQ(answer.headers.get("content-length"), "6");
    EXPECT_EQ(answer.headers.get("accept-ranges"), "bytes");
    EXPECT_EQ(answer.headers.get("vary"), "Accept-Encoding");
    EXPECT_EQ(answer.headers.find("content-encoding"), std::nullopt);
    auto const head = co_await guest.request("HEAD", "/files?path=a+b.txt", {}, "");
    EXPECT_EQ(head.status, 200);
    EXPECT_EQ(head.headers.get("content-length"), "6");
    EXPECT_EQ(head.body, "");
    HeaderList const packed{{"accept-encoding", "gzip"}};
    auto const packed_head = co_await guest.request("HEAD", "/files?path=a+b.txt", packed, "");
    EXPECT_EQ(packed_head.headers.get("content-length"), "6");
    put(guest.etc.home() + "/empty", "");
    auto const empty = co_await guest.get("/files?path=empty");
    EXPECT_EQ(empty.status, 200);
    EXPECT_EQ(empty.headers.get("content-length"), "0");
  });
}

TEST(FilesDownload, Ranges) {
  with_guest([](Guest& guest) -> asio::awaitable<void> {
    put(guest.etc.home() + "/digits", "0123456789");
    auto const part = co_await guest.request(
        "GET", "/files?path=digits", {{"range", "bytes=2-4"}, {"accept-encoding", "gzip"}}, "");
    EXPECT_EQ(part.status, 206);
    EXPECT_EQ(part.body, "234");
    EXPECT_EQ(part.headers.get("content-range"), "bytes 2-4/10");
    EXPECT_EQ(part.headers.find("content-encoding"), std::nullopt);
    auto const beyond =
        co_await guest.request("GET", "/files?path=digits", {{"range", "bytes=10-"}}, "");
    EXPECT_EQ(beyond.status, 416);
    EXPECT_EQ(beyond.headers.get("content-range"), "bytes */10");
    auto const modified = std::string(part.headers.get("last-modified"));
    auto const same = co_await guest.request(
        "GET", "/files?path=digits", {{"range", "bytes=-1"}, {"if-range", modified}}, "");
    EXPECT_EQ(same.body, "9");
    HeaderList const older{{"range", "bytes=-1"}, {"if-range", "Sun, 06 Nov 1994 08:49:37 GMT"}};
    auto const changed = co_await guest.request("GET", "/files?path=digits", older, "");
    EXPECT_EQ(changed.status, 200);
    EXPECT_EQ(changed.body, "0123456789");
    auto const unchanged =
        co_await guest.request("GET", "/files?path=digits", {{"if-modified-since", modified}}, "");
    EXPECT_EQ(unchanged.status, 304);
  });
}

TEST(FilesDownload, EncodingsAreTheClientsChoice) {
  with_guest([](Guest& guest) -> asio::awaitable<void> {
    std::string text;
    while (text.size() < (1U << 20))
      text += "line " + std::to_string(text.size()) + "\n";
    put(guest.etc.home() + "/log.txt", text);
    for (std::string const asked : {"gzip", "gzip, deflate", "identity;q=0, gzip;q=0.5"}) {
      auto const answer =
          co_await guest.request("GET", "/files?path=log.txt", {{"accept-encoding", asked}}, "");
      EXPECT_EQ(answer.status, 200);
      EXPECT_EQ(answer.headers.get("content-encoding"), "gzip") << asked;
      EXPECT_LT(answer.body.size(), text.size() / 2);
      EXPECT_TRUE(gunzipped(answer.body) == text);
    }
    for (std::string const asked : {"", "identity", "br", "gzip;q=0"}) {
      auto const answer =
          co_await guest.request("GET", "/files?path=log.txt", {{"accept-encoding", asked}}, "");
      EXPECT_EQ(answer.headers.find("content-encoding"), std::nullopt) << asked;
      EXPECT_TRUE(answer.body == text);
    }
    auto const refused = co_await guest.request(
        "GET", "/files?path=log.txt", {{"accept-encoding", "br, *;q=0"}}, "");
    EXPECT_EQ(refused.status, 406);
    EXPECT_EQ(refused.json().at("code"), 406);
  });
}

TEST(FilesDownload, ErrorsHaveTheSentencesThatClientsKnow) {
  with_guest([](Guest& guest) -> asio::awaitable<void> {
    auto const home = guest.etc.home();
    fs::create_directory(home + "/dir");
    EXPECT_EQ(::mkfifo((home + "/pipe").c_str(), 0666), 0);
    auto const missing = co_await guest.get("/files?path=nope");
    EXPECT_EQ(missing.status, 404);
    EXPECT_EQ(missing.body,
              R"({"code":404,"message":"path ')" + home + R"(/nope' does not exist"})");
    auto const directory = co_await guest.get("/files?path=dir");
    EXPECT_EQ(directory.status, 400);
    EXPECT_EQ(directory.body,
              R"({"code":400,"message":"path ')" + home + R"(/dir' is a directory"})");
    auto const pipe = co_await guest.get("/files?path=pipe");
    EXPECT_EQ(pipe.status, 400);
    auto const user = co_await guest.get("/files?path=dir&username=nobody2");
    EXPECT_EQ(user.status, 401);
    auto const query = co_await guest.get("/files?path=%zz");
    EXPECT_EQ(query.status, 400);
    auto const method = co_await guest.request("DELETE", "/files?path=dir", {}, "");
    EXPECT_EQ(method.status, 405);
  });
}

TEST(FilesDownload, FilesOfTheKernelHaveContentWithoutASize) {
  with_guest([](Guest& guest) -> asio::awaitable<void> {
    auto const answer = co_await guest.get("/files?path=/proc/self/status");
    EXPECT_EQ(answer.status, 200);
    EXPECT_EQ(answer.headers.get("transfer-encoding"), "chunked");
    EXPECT_NE(answer.body.find("VmRSS"), std::string::npos);
  });
}

TEST(FilesAccess, TokenOrSignature) {
  with_guest([](Guest& guest) -> asio::awaitable<void> {
    guest.agent->context().access_token = base::Secret("tok123");
    put(guest.etc.home() + "/a", "secret");
    auto const none = co_await guest.get("/files?path=a");
    EXPECT_EQ(none.status, 401);
    EXPECT_EQ(none.body, R"({"code":401,"message":"missing signature query parameter"})");
    auto const token =
        co_await guest.request("GET", "/files?path=a", {{"x-access-token", "tok123"}}, "");
    EXPECT_EQ(token.body, "secret");
    auto const wrong =
        co_await guest.request("GET", "/files?path=a", {{"x-access-token", "tok12"}}, "");
    EXPECT_EQ(wrong.body,
              R"({"code":401,"message":"access token present in header but does not match"})");

    auto const signed_for = [](FileOperation operation, std::optional<std::int64_t> expiration) {
      auto const signature = file_signature({operation, "a", "user", expiration}, "tok123");
      auto query = "path=a&username=user&signature=" + http::percent_encode(signature);
      if (expiration) query += "&signature_expiration=" + std::to_string(*expiration);
      return query;
    };
    auto const good = co_await guest.get("/files?" + signed_for(FileOperation::read, std::nullopt));
    EXPECT_EQ(good.body, "secret");
    auto const late = co_await guest.get("/files?" + signed_for(FileOperation::read, 1));
    EXPECT_EQ(late.body, R"({"code":401,"message":"signature is already expired"})");
    auto const later = co_await guest.get("/files?" + signed_for(FileOperation::read, 32503680000));
    EXPECT_EQ(later.body, "secret");
    auto const no_number = co_await guest.get(
        "/files?" + signed_for(FileOperation::read, std::nullopt) + "&signature_expiration=soon");
    EXPECT_EQ(no_number.status, 400);
    auto const write = co_await post_raw(guest, signed_for(FileOperation::read, std::nullopt), "x");
    EXPECT_EQ(write.status, 401);
    auto const written =
        co_await post_raw(guest, signed_for(FileOperation::write, std::nullopt), "x");
    EXPECT_EQ(written.status, 200);
    auto const compose = co_await guest.request(
        "POST", "/files/compose", {{"content-type", "application/json"}}, "{}");
    EXPECT_EQ(compose.status, 401);
  });
}

// As on the hosted service, whose users' programs read and write where the user named alone could
// not.
TEST(FilesRights, AreRootsAndWhatIsMadeBelongsToTheUserNamed) {
  if (::geteuid() != 0) GTEST_SKIP() << "giving files to another user needs root";
  with_guest([](Guest& guest) -> asio::awaitable<void> {
    auto const home = guest.etc.home();
    put(home + "/private", "x");
    EXPECT_EQ(::chmod((home + "/private").c_str(), 0600), 0);
    auto const path = http::percent_encode(home);
    auto const read = co_await guest.get("/files?username=other&path=" + path + "/private");
    EXPECT_EQ(read.status, 200);
    EXPECT_EQ(read.body, "x");
    auto const made = co_await post_raw(guest, "username=other&path=" + path + "/d/f", "x");
    EXPECT_EQ(made.status, 200);
    struct stat status{};
    for (std::string const name : {"/d", "/d/f"}) {
      EXPECT_EQ(::stat((home + name).c_str(), &status), 0);
      EXPECT_EQ(status.st_uid, 4242U) << name;
      EXPECT_EQ(status.st_gid, 4243U) << name;
    }
    // An existing file changes hands, and keeps its mode.
    auto const over = co_await post_raw(guest, "username=other&path=" + path + "/private", "y");
    EXPECT_EQ(over.status, 200);
    EXPECT_EQ(::stat((home + "/private").c_str(), &status), 0);
    EXPECT_EQ(status.st_uid, 4242U);
    EXPECT_EQ(status.st_mode & 07777U, 0600U);
  });
}

TEST(FilesCompose, JoinsPartsAndTakesThemAway) {
  with_guest([](Guest& guest) -> asio::awaitable<void> {
    auto const home = guest.etc.home();
    put(home + "/p1", "one ");
    put(home + "/p2", "two");
    auto const compose = [&](std::string body) {
      return guest.request(
          "POST", "/files/compose", {{"content-type", "application/json"}}, std::move(body));
    };
    auto const answer = co_await compose(R"({"source_paths":["p1","p2"],"destination":"out/all"})");
    EXPECT_EQ(answer.status, 200);
    EXPECT_EQ(answer.json().at("path").as_string(), home + "/out/all");
    EXPECT_EQ(content_of(home + "/out/all"), "one two");
    EXPECT_FALSE(fs::exists(home + "/p1") || fs::exists(home + "/p2"));

    put(home + "/p1", "again");
    auto const missing =
        co_await compose(R"({"source_paths":["p1","nope"],"destination":"out/all"})");
    EXPECT_EQ(missing.status, 404);
    EXPECT_EQ(content_of(home + "/out/all"), "one two");
    EXPECT_TRUE(fs::exists(home + "/p1"));
    auto const self =
        co_await compose(R"({"source_paths":["out/all"],"destination":"out/../out/all"})");
    EXPECT_EQ(self.status, 400);
    auto const empty = co_await compose(R"({"source_paths":[],"destination":"x"})");
    EXPECT_EQ(empty.status, 400);
    auto const nowhere = co_await compose(R"({"source_paths":["p1"]})");
    EXPECT_EQ(nowhere.status, 400);
    auto const nobody =
        co_await compose(R"({"source_paths":["p1"],"destination":"x","username":"nobody2"})");
    EXPECT_EQ(nobody.status, 401);
    EXPECT_EQ(std::distance(fs::directory_iterator(home + "/out"), fs::directory_iterator()), 1);
  });
}

}  // namespace
}  // namespace agent
