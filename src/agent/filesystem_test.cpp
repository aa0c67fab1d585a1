#include "agent/filesystem.hpp"

#include "agent/filesystem_entry.hpp"
#include "agent/filesystem_tree.hpp"
#include "agent/testing.hpp"

#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include <fcntl.h>

namespace agent {
namespace {

namespace fs = std::filesystem;
using testing::Answer;
using testing::Guest;
using testing::HeaderList;
using testing::with_guest;

void put(std::string const& path, std::string const& content) {
  std::ofstream(path, std::ios::binary) << content;
}

asio::awaitable<Answer> call(Guest& guest,
                             std::string method,
                             json::object message,
                             HeaderList headers = {}) {
  headers.emplace_back("content-type", "application/json");
  co_return co_await guest.request(
      "POST", "/filesystem.Filesystem/" + method, std::move(headers), wire::to_text(message));
}

std::string code_of(Answer const& answer) {
  return answer.status == 200 ? "ok" : std::string(answer.json().at("code").as_string());
}

asio::awaitable<json::object> entry(Guest& guest, std::string path) {
  auto const answer = co_await call(guest, "Stat", {{"path", path}});
  EXPECT_EQ(answer.status, 200) << answer.body;
  co_return answer.json().at("entry").as_object();
}

TEST(FilesystemStat, TellsEverythingAboutAFile) {
  with_guest([](Guest& guest) -> asio::awaitable<void> {
    auto const path = guest.etc.home() + "/a.txt";
    put(path, "12345");
    EXPECT_EQ(::chmod(path.c_str(), 0640), 0);
    timespec const times[2] = {{1700000000, 0}, {1700000000, 120'000'000}};
    EXPECT_EQ(::utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
    auto const answer = co_await call(guest, "Stat", {{"path", "a.txt"}});
    auto const owner = OwnerNames(guest.etc.path()).user(::getuid());
    auto const group = OwnerNames(guest.etc.path()).group(::getuid());
    EXPECT_EQ(answer.body,
              R"({"entry":{"name":"a.txt","type":"FILE_TYPE_FILE","path":")" + path +
                  R"(","size":"5","mode":416,"permissions":"-rw-r-----","owner":")" + owner +
                  R"(","group":")" + group + R"(","modifiedTime":"2023-11-14T22:13:20.120Z"}})");
    auto const missing = co_await call(guest, "Stat", {{"path", "nope"}});
    EXPECT_EQ(missing.status, 404);
    EXPECT_EQ(code_of(missing), "not_found");
    auto const nobody = co_await call(
        guest, "Stat", {{"path", "a.txt"}}, {{"authorization", "Basic bm9ib2R5Mjo="}});
    EXPECT_EQ(code_of(nobody), "unauthenticated");
    EXPECT_EQ(nobody.json().at("message").as_string(), "invalid username: 'nobody2'");
  });
}

TEST(FilesystemStat, LinksShowTheirTargetsTypeAndTheirOwnPermissions) {
  with_guest([](Guest& guest) -> asio::awaitable<void> {
    auto const home = guest.etc.home();
    auto const real = fs::canonical(home).string();
    fs::create_directory(home + "/dir");
    put(home + "/dir/file", "1234567");
    EXPECT_EQ(::chmod((home + "/dir/file").c_str(), 0600), 0);
    fs::create_symlink("dir/file", home + "/link");
    fs::create_symlink("link", home + "/chain");
    fs::create_symlink("dir", home + "/folder");
    fs::create_symlink("nowhere", home + "/dangling");
    fs::create_symlink("loop", home + "/loop");

    auto const chain = co_await entry(guest, "chain");
    EXPECT_EQ(chain.at("type").as_string(), "FILE_TYPE_FILE");
    EXPECT_EQ(chain.at("mode"), 0600);
    EXPECT_EQ(chain.at("permissions").as_string(), "Lrwxrwxrwx");
    EXPECT_EQ(chain.at("size").as_string(), "4");  // of the link itself
    EXPECT_EQ(chain.at("symlinkTarget").as_string(), real + "/dir/file");
    EXPECT_EQ(chain.at("path").as_string(), home + "/chain");
    auto const folder = co_await entry(guest, "folder");
    EXPECT_EQ(folder.at("type").as_string(), "FILE_TYPE_DIRECTORY");
    for (std::string const name : {"dangling", "loop"}) {
      auto const lost = co_await entry(guest, name);
      EXPECT_EQ(lost.at("type").as_string(), "FILE_TYPE_UNSPECIFIED");
      EXPECT_EQ(lost.at("mode"), 0);
      EXPECT_EQ(lost.at("symlinkTarget").as_string(), home + "/" + name);
    }
  });
}

TEST(PermissionsText, IsGosSpelling) {
  EXPECT_EQ(permissions_text(S_IFREG | 0644), "-rw-r--r--");
  EXPECT_EQ(permissions_text(S_IFDIR | 0755), "drwxr-xr-x");
  EXPECT_EQ(permissions_text(S_IFLNK | 0777), "Lrwxrwxrwx");
  EXPECT_EQ(permissions_text(S_IFDIR | S_ISVTX | 0777), "dtrwxrwxrwx");
  EXPECT_EQ(permissions_text(S_IFREG | S_ISUID | 0755), "urwxr-xr-x");
  EXPECT_EQ(permissions_text(S_IFCHR | 0600), "Dcrw-------");
}

TEST(FilesystemListDir, IsDepthFirstInTheOrderOfNames) {
  with_guest([](Guest& guest) -> asio::awaitable<void> {
    auto const home = guest.etc.home();
    for (std::string const directory : {"/a", "/a/b", "/a/b/c", "/a/b/c/d", "/B", "/e"})
      fs::create_directory(home + directory);
    for (std::string const file : {"/a.txt", "/a/z", "/a/b/f", "/B/g"})
      put(home + file, "");
    fs::create_directory_symlink("a", home + "/to_a");
    auto const names = [&](json::object message) -> asio::awaitable<std::string> {
      auto const answer = co_await call(guest, "ListDir", std::move(message));
      std::string text;
      for (auto const& one : answer.json().at("entries").as_array())
        text += std::string(one.at("path").as_string()).substr(home.size()) + " ";
      co_return text;
    };
    auto const one = co_await names({{"path", "."}});
    EXPECT_EQ(one, "/B /a /a.txt /e /to_a ");
    auto const zero = co_await names({{"path", home}, {"depth", 0}});
    EXPECT_EQ(zero, one);
    auto const two = co_await names({{"path", home + "/"}, {"depth", 2}});
    EXPECT_EQ(two, "/B /B/g /a /a/b /a/z /a.txt /e /to_a ");
    auto const all = co_await names({{"path", "~"}, {"depth", 4294967295}});
    EXPECT_EQ(all, "/B /B/g /a /a/b /a/b/c /a/b/c/d /a/b/f /a/z /a.txt /e /to_a ");
    // A link that is asked for is followed, and its own name stays in the paths.
    auto const by_link = co_await names({{"path", "to_a"}});
    EXPECT_EQ(by_link, "/to_a/b /to_a/z ");
    auto const file = co_await call(guest, "ListDir", {{"path", "a.txt"}});
    EXPECT_EQ(code_of(file), "invalid_argument");
    EXPECT_EQ(file.json().at("message").as_string(), "path is not a directory: " + home + "/a.txt");
    auto const missing = co_await call(guest, "ListDir", {{"path", "nope"}});
    EXPECT_EQ(code_of(missing), "not_found");
  });
}

TEST(FilesystemListDir, NamesThatAreNoTextStayValidJson) {
  with_guest([](Guest& guest) -> asio::awaitable<void> {
    put(guest.etc.home() + "/\xff\xfe\"x", "");
    auto const answer = co_await call(guest, "ListDir", {{"path", "."}});
    EXPECT_EQ(answer.json().at("entries").as_array().at(0).at("name").as_string(),
              "\xEF\xBF\xBD\xEF\xBF\xBD\"x");
  });
}

TEST(ListDirectory, HasABound) {
  testing::Etc const etc;
  for (int i = 0; i < 20; ++i)
    put(etc.home() + "/" + std::to_string(i), "");
  EXPECT_TRUE(list_directory(etc.home(), 1, 20));
  auto const refused = list_directory(etc.home(), 1, 19);
  ASSERT_FALSE(refused);
  EXPECT_EQ(rpc_error_of(refused.error()).code, RpcCode::resource_exhausted);
}

TEST(FilesystemMakeDir, MakesParentsAndSaysWhatIsThere) {
  with_guest([](Guest& guest) -> asio::awaitable<void> {
    auto const made = co_await call(guest, "MakeDir", {{"path", "x/y/z"}});
    EXPECT_EQ(made.status, 200);
    EXPECT_EQ(made.json().at("entry").at("type").as_string(), "FILE_TYPE_DIRECTORY");
    EXPECT_EQ(made.json().at("entry").at("permissions").as_string(), "drwxr-xr-x");
    auto const again = co_await call(guest, "MakeDir", {{"path", "x/y"}});
    EXPECT_EQ(again.status, 409);
    EXPECT_EQ(code_of(again), "already_exists");
    put(guest.etc.home() + "/file", "");
    auto const file = co_await call(guest, "MakeDir", {{"path", "file"}});
    EXPECT_EQ(code_of(file), "invalid_argument");
    auto const below = co_await call(guest, "MakeDir", {{"path", "file/x"}});
    EXPECT_EQ(code_of(below), "invalid_argument");
    auto const closed = co_await call(guest, "MakeDir", {{"path", "p/q"}, {"mode", 0700}});
    EXPECT_EQ(closed.json().at("entry").at("permissions").as_string(), "drwx------");
    auto const parent = co_await call(guest, "Stat", {{"path", "p"}});
    EXPECT_EQ(parent.json().at("entry").at("permissions").as_string(), "drwxr-xr-x");
    auto const wrong = co_await call(guest, "MakeDir", {{"path", "r"}, {"mode", 01777}});
    EXPECT_EQ(code_of(wrong), "invalid_argument");
  });
}

TEST(FilesystemMove, MakesParentsAndReplaces) {
  with_guest([](Guest& guest) -> asio::awaitable<void> {
    auto const home = guest.etc.home();
    put(home + "/a", "new");
    put(home + "/old", "old");
    auto const moved =
        co_await call(guest, "Move", {{"source", "a"}, {"destination", "deep/er/b"}});
    EXPECT_EQ(moved.json().at("entry").at("path").as_string(), home + "/deep/er/b");
    auto const replaced =
        co_await call(guest, "Move", {{"source", "deep/er/b"}, {"destination", home + "/old"}});
    EXPECT_EQ(replaced.json().at("entry").at("size").as_string(), "3");
    auto const missing = co_await call(guest, "Move", {{"source", "a"}, {"destination", "c"}});
    EXPECT_EQ(code_of(missing), "not_found");
    auto const inside =
        co_await call(guest, "Move", {{"source", "deep"}, {"destination", "deep/er/x"}});
    EXPECT_EQ(code_of(inside), "invalid_argument");
    auto const nothing = co_await call(guest, "Move", {{"source", "old"}});
    EXPECT_EQ(code_of(nothing), "invalid_argument");
  });
}

TEST(FilesystemMove, CrossesFileSystems) {
  auto const other = fs::path("/dev/shm/agent_test." + std::to_string(::getpid()));
  struct stat here{};
  struct stat there{};
  testing::Etc const etc;
  ASSERT_EQ(::stat(etc.home().c_str(), &here), 0);
  if (::stat("/dev/shm", &there) != 0 || here.st_dev == there.st_dev)
    GTEST_SKIP() << "no second file system";
  User const me{"user", ::getuid(), ::getgid(), etc.home(), "/bin/sh", {::getgid()}};
  fs::create_directories(etc.home() + "/tree/sub");
  put(etc.home() + "/tree/sub/file", "content");
  ::chmod((etc.home() + "/tree/sub/file").c_str(), 0751);
  fs::create_symlink("sub/file", etc.home() + "/tree/link");
  ASSERT_EQ(::mkfifo((etc.home() + "/tree/pipe").c_str(), 0600), 0);

  auto const moved = move_path(etc.home() + "/tree", other / "x/tree", me);
  EXPECT_TRUE(moved) << moved.error().message;
  EXPECT_FALSE(fs::exists(etc.home() + "/tree"));
  EXPECT_EQ(fs::status(other / "x/tree/sub/file").permissions(), fs::perms(0751));
  EXPECT_EQ(fs::read_symlink(other / "x/tree/link"), "sub/file");
  EXPECT_TRUE(fs::is_fifo(other / "x/tree/pipe"));
  // Back over a file that stands there; what is left behind tells whether a temporary name was.
  put(etc.home() + "/target", "old");
  EXPECT_TRUE(move_path(other / "x/tree/sub/file", etc.home() + "/target", me));
  EXPECT_EQ(fs::file_size(etc.home() + "/target"), 7U);
  EXPECT_EQ(std::distance(fs::directory_iterator(etc.home()), fs::directory_iterator()), 1);
  fs::remove_all(other);
}

TEST(FilesystemRemove, IsRecursiveAndContentWithNothing) {
  with_guest([](Guest& guest) -> asio::awaitable<void> {
    auto const home = guest.etc.home();
    fs::create_directories(home + "/t/a/b");
    put(home + "/t/a/f", "");
    put(home + "/keep", "");
    fs::create_symlink(home + "/keep", home + "/t/a/link");
    fs::create_directory_symlink(home, home + "/t/a/up");
    auto const removed = co_await call(guest, "Remove", {{"path", "t"}});
    EXPECT_EQ(removed.body, "{}");
    EXPECT_FALSE(fs::exists(home + "/t"));
    EXPECT_TRUE(fs::exists(home + "/keep"));
    auto const again = co_await call(guest, "Remove", {{"path", "t"}});
    EXPECT_EQ(again.body, "{}");
    auto const below_a_file = co_await call(guest, "Remove", {{"path", "keep/x"}});
    EXPECT_EQ(below_a_file.body, "{}");
    fs::create_symlink("keep", home + "/link");
    auto const link = co_await call(guest, "Remove", {{"path", "link"}});
    EXPECT_EQ(link.body, "{}");
    EXPECT_TRUE(fs::exists(home + "/keep"));
    auto const unnamed = co_await call(guest, "Remove", {});
    EXPECT_EQ(code_of(unnamed), "invalid_argument");
    EXPECT_TRUE(fs::exists(home + "/keep"));
    auto const root = co_await call(guest, "Remove", {{"path", "/"}});
    EXPECT_EQ(code_of(root), "invalid_argument");
  });
}

TEST(RemoveTree, ATreeDeeperThanAnyPathIsRemoved) {
  testing::Etc const etc;
  // 3000 levels of two bytes are longer than PATH_MAX: only steps from directory to directory reach
  // the end.
  int at = ::open(etc.home().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  for (int level = 0; level < 3000; ++level) {
    ASSERT_EQ(::mkdirat(at, "d", 0755), 0);
    int const next = ::openat(at, "d", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    ::close(at);
    at = next;
  }
  ::close(at);
  auto const removed = remove_tree(etc.home() + "/d");
  EXPECT_TRUE(removed) << removed.error().message;
  EXPECT_TRUE(fs::is_empty(etc.home()));
}

TEST(FilesystemRights, AreRootsAndWhatIsMadeBelongsToTheUserNamed) {
  if (::geteuid() != 0) GTEST_SKIP() << "giving files to another user needs root";
  with_guest([](Guest& guest) -> asio::awaitable<void> {
    auto const home = guest.etc.home();
    fs::create_directories(home + "/closed/inside");
    EXPECT_EQ(::chmod((home + "/closed").c_str(), 0700), 0);
    HeaderList const other{{"authorization", "Basic b3RoZXI6"}};
    for (std::string const method : {"Stat", "ListDir", "CreateWatcher"}) {
      auto const answer = co_await call(guest, method, {{"path", home + "/closed/inside"}}, other);
      EXPECT_EQ(code_of(answer), "ok") << method << answer.body;
    }
    auto const made =
        co_await call(guest, "MakeDir", {{"path", home + "/closed/theirs/too"}}, other);
    EXPECT_EQ(code_of(made), "ok") << made.body;
    struct stat status{};
    for (std::string const name : {"/closed/theirs", "/closed/theirs/too"}) {
      EXPECT_EQ(::stat((home + name).c_str(), &status), 0);
      EXPECT_EQ(status.st_uid, 4242U) << name;
      EXPECT_EQ(status.st_gid, 4243U) << name;
    }
    auto const moved =
        co_await call(guest,
                      "Move",
                      {{"source", home + "/closed/inside"}, {"destination", home + "/new/place"}},
                      other);
    EXPECT_EQ(code_of(moved), "ok") << moved.body;
    // What is moved keeps its owner; the directory that was made for it is the user's.
    EXPECT_EQ(::stat((home + "/new/place").c_str(), &status), 0);
    EXPECT_EQ(status.st_uid, ::getuid());
    EXPECT_EQ(::stat((home + "/new").c_str(), &status), 0);
    EXPECT_EQ(status.st_uid, 4242U);
    auto const removed = co_await call(guest, "Remove", {{"path", home + "/closed"}}, other);
    EXPECT_EQ(code_of(removed), "ok") << removed.body;
    EXPECT_FALSE(fs::exists(home + "/closed"));
  });
}

}  // namespace
}  // namespace agent
