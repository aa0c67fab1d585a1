#include "cli/copy_plan.hpp"
#include "cli/progress.hpp"
#include "cli/verbs.hpp"
#include "wire/codec.hpp"

#include <sys/stat.h>

#include <charconv>
#include <filesystem>
#include <ranges>
#include <vector>

#include <fcntl.h>
#include <unistd.h>

namespace cli {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

constexpr std::size_t chunk = 256U << 10;

/// Copies between this computer and sandboxes, one file after the other. What is neither file nor
/// folder is left out with a note. A download writes beside its place and renames, so that a cut
/// leaves no half file.
class Copier {
 public:
  Copier(Session session, CopyOptions options) : session_(session), options_(std::move(options)) {}

  async::Task<void> run();

  /// Every file that arrived, also of a run that failed later.
  json::array take_copied() { return std::move(copied_); }

 private:
  async::Task<void> copy_one(CopyPlace from, CopyPlace to, bool many);
  async::Task<void> upload(std::string here, std::string sandbox, std::string there);
  async::Task<void> upload_file(std::string here, std::string sandbox, std::string there);
  async::Task<void> make_folder(std::string here, std::string sandbox, std::string there);
  async::Task<void> download(std::string sandbox, std::string there, std::string here);
  async::Task<void> download_folder(std::string sandbox,
                                    std::string there,
                                    json::value entry,
                                    std::string here);
  async::Task<void> download_file(std::string sandbox,
                                  std::string there,
                                  std::string here,
                                  mode_t mode);
  async::Task<json::value> stat(std::string sandbox, std::string there);
  std::string target(std::string_view sandbox, std::string_view below, std::string_view path) const;
  void note_copied(std::string_view from, std::string_view to, std::uint64_t bytes);

  Session session_;
  CopyOptions options_;
  Progress progress_ = Progress::on_stderr();
  json::array copied_{};
};

/// The permission bits that an entry of a sandbox tells. What a guest says is not trusted further:
/// no set-id bit comes out, and our umask counts as for any new file.
mode_t mode_of(json::value const& entry, mode_t otherwise) {
  auto const& mode = member_of(entry, "mode");
  return mode.is_int64() ? static_cast<mode_t>(mode.get_int64()) & 0777U : otherwise;
}

/// Folders that were made for a download, and what they may once everything is in them: one that
/// nobody may write to could not be filled.
class MadeFolders {
 public:
  base::Result<void> make(std::string const& path, mode_t mode) {
    std::error_code failed;
    bool const made = fs::create_directories(path, failed);
    if (failed) return base::fail_errno(failed.value(), "make the folder " + path);
    if (made) made_.emplace_back(path, mode);
    return {};
  }

  base::Result<void> finish() {
    for (auto const& [path, mode] : std::views::reverse(made_)) {
      struct stat status{};
      bool const done = ::stat(path.c_str(), &status) == 0 &&
                        ::chmod(path.c_str(), status.st_mode & mode & 0777U) == 0;
      if (!done) return base::fail_errno("change the mode of the folder " + path);
    }
    return {};
  }

 private:
  std::vector<std::pair<std::string, mode_t>> made_;
};

void Copier::note_copied(std::string_view from, std::string_view to, std::uint64_t bytes) {
  if (session_.out.as_json())
    copied_.push_back(json::object{{"from", from}, {"to", to}, {"bytes", bytes}});
}

std::string Copier::target(std::string_view sandbox,
                           std::string_view below,
                           std::string_view path) const {
  auto out = path_of(
      "sandboxes", sandbox, fmt::format("/files{}?path={}", below, http::percent_encode(path)));
  if (!options_.user.empty()) out += "&user=" + http::percent_encode(options_.user);
  return out;
}

async::Task<json::value> Copier::stat(std::string sandbox, std::string there) {
  return session_.api.call("GET", target(sandbox, "/stat", there), nullptr, in_a_minute());
}

async::Task<void> Copier::run() {
  auto to = parse_place(options_.destination, fs::exists(options_.destination));
  if (!to) co_return base::passing(to);
  for (auto const& source : options_.sources) {
    auto from = parse_place(source, fs::exists(source));
    if (!from) co_return base::passing(from);
    if (from->sandbox.empty() == to->sandbox.empty()) {
      co_return base::fail(
          base::Code::invalid_argument,
          from->sandbox.empty()
              ? "neither side is in a sandbox; write one of them like ID:/path"
              : "both sides are in sandboxes; copy over this computer in two steps");
    }
    auto done = co_await copy_one(*from, *to, options_.sources.size() > 1);
    if (!done) co_return base::passing(done, source);
  }
  co_return base::Result<void>();
}

async::Task<void> Copier::copy_one(CopyPlace from, CopyPlace to, bool many) {
  if (to.sandbox.empty()) {
    auto here = target_of(from.path, to.path, many || fs::is_directory(to.path));
    co_return co_await download(std::move(from.sandbox), std::move(from.path), std::move(here));
  }
  bool folder = many;
  if (!folder && !to.path.ends_with('/')) {
    auto entry = co_await stat(to.sandbox, to.path);
    if (!entry && entry.error().code() != base::Code::not_found) co_return base::passing(entry);
    folder = entry && text_of(*entry, "type") == "directory";
  }
  auto there = target_of(fs::absolute(from.path).lexically_normal().string(), to.path, folder);
  co_return co_await upload(std::move(from.path), std::move(to.sandbox), std::move(there));
}

async::Task<void> Copier::upload(std::string here, std::string sandbox, std::string there) {
  std::error_code failed;
  auto const status = fs::status(here, failed);
  if (failed || !fs::exists(status))
    co_return base::fail(base::Code::not_found, "there is no such file or folder here");
  if (!fs::is_directory(status))
    co_return co_await upload_file(std::move(here), std::move(sandbox), std::move(there));
  auto made = co_await make_folder(here, sandbox, there);
  if (!made) co_return base::passing(made);
  fs::recursive_directory_iterator entries(here, failed);
  for (; !failed && entries != fs::recursive_directory_iterator(); entries.increment(failed)) {
    auto const entry = *entries;
    auto const relative = entry.path().lexically_relative(here).string();
    auto const place = there + "/" + relative;
    base::Result<void> done;
    if (entry.is_directory() && !entry.is_symlink())
      done = co_await make_folder(entry.path().string(), sandbox, place);
    else if (entry.is_regular_file())
      done = co_await upload_file(entry.path().string(), sandbox, place);
    else
      session_.out.note(
          fmt::format("space: left out {}: neither a file nor a folder", entry.path().string()));
    if (!done) co_return base::passing(done, relative);
  }
  if (failed) co_return base::fail_errno(failed.value(), "read the folder");
  co_return base::Result<void>();
}

/// One that is there already keeps its own permission bits.
async::Task<void> Copier::make_folder(std::string here, std::string sandbox, std::string there) {
  struct stat status{};
  if (::stat(here.c_str(), &status) != 0) co_return base::fail_errno("look at it");
  json::object body{{"path", there}, {"mode", status.st_mode & 0777U}};
  if (!options_.user.empty()) body["user"] = options_.user;
  auto made = co_await session_.api.call(
      "POST", path_of("sandboxes", sandbox, "/files/mkdir"), std::move(body), in_a_minute());
  if (made) co_return base::Result<void>();
  if (made.error().code() != base::Code::conflict) co_return base::passing(made);
  // There already: fine when it is a folder.
  auto entry = co_await stat(std::move(sandbox), std::move(there));
  if (entry && text_of(*entry, "type") == "directory") co_return base::Result<void>();
  co_return base::passing(made);
}

async::Task<void> Copier::upload_file(std::string here, std::string sandbox, std::string there) {
  os::Fd const file(open(here.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) co_return base::fail_errno("open it");
  struct stat status{};
  if (fstat(file.get(), &status) != 0) co_return base::fail_errno("look at it");
  auto const size = static_cast<std::uint64_t>(status.st_size);
  auto connection = co_await session_.api.connect();
  if (!connection) co_return base::passing(connection);
  auto head = session_.api.head(
      "PUT", fmt::format("{}&mode={}", target(sandbox, "", there), status.st_mode & 0777U));
  head.headers.add("Content-Type", "application/octet-stream");
  head.headers.add("Content-Length", fmt::format("{}", size));
  auto begun = co_await connection->begin(std::move(head));
  if (!begun) co_return base::passing(begun);
  progress_.begin(fs::path(here).filename().string());
  std::string buffer(chunk, '\0');
  for (std::uint64_t sent = 0; sent < size;) {
    auto const got = ::read(file.get(), buffer.data(), std::min<std::uint64_t>(chunk, size - sent));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) co_return base::fail_errno("read it");
    if (got == 0) co_return base::fail(base::Code::conflict, "it got shorter while it was copied");
    auto written = co_await connection->write(
        std::string_view(buffer).substr(0, static_cast<std::size_t>(got)));
    if (!written) break;  // the server said no before it had all: its answer tells why
    sent += static_cast<std::uint64_t>(got);
    progress_.update(static_cast<int>(sent * 100 / size), fmt::format("{} MiB", sent >> 20));
  }
  auto exchange = co_await connection->finish_request();
  progress_.clear();
  if (!exchange) co_return base::passing(exchange);
  auto text = co_await (*exchange)->body().read_all(1U << 20);
  if ((*exchange)->head.status / 100 == 2) {
    note_copied(here, sandbox + ":" + there, size);
    co_return base::Result<void>();
  }
  co_return std::unexpected(error_of((*exchange)->head.status, text ? *text : std::string()));
}

async::Task<void> Copier::download(std::string sandbox, std::string there, std::string here) {
  auto entry = co_await stat(sandbox, there);
  if (!entry) co_return base::passing(entry);
  auto const type = text_of(*entry, "type");
  if (type != "directory") {
    auto const mode = mode_of(*entry, 0666);
    co_return co_await download_file(std::move(sandbox), std::move(there), std::move(here), mode);
  }
  co_return co_await download_folder(
      std::move(sandbox), std::move(there), std::move(*entry), std::move(here));
}

async::Task<void> Copier::download_folder(std::string sandbox,
                                          std::string there,
                                          json::value entry,
                                          std::string here) {
  auto const root = text_of(entry, "path");
  auto listing = co_await session_.api.call(
      "GET", target(sandbox, "/list", there) + "&depth=64", nullptr, in_a_minute());
  if (!listing) co_return base::passing(listing);
  MadeFolders folders;
  auto made = folders.make(here, mode_of(entry, 0777));
  if (!made) co_return base::passing(made);
  auto const* entries = member_of(*listing, "entries").if_array();
  if (!entries)
    co_return base::fail(base::Code::internal, "the API's answer has no list of entries");
  for (auto const& one : *entries) {
    auto const path = text_of(one, "path");
    auto const relative = safe_below(root, path);
    if (!relative) {
      session_.out.note("space: left out an entry whose name leads out of the folder");
      continue;
    }
    auto const place = here + "/" + *relative;
    if (text_of(one, "type") == "directory") {
      made = folders.make(place, mode_of(one, 0777));
      if (!made) co_return base::passing(made);
    } else if (text_of(one, "type") == "file") {
      auto done = co_await download_file(sandbox, path, place, mode_of(one, 0666));
      if (!done) co_return base::passing(done, *relative);
    } else {
      session_.out.note(fmt::format("space: left out {}: neither a file nor a folder", *relative));
    }
  }
  co_return folders.finish();
}

async::Task<void> Copier::download_file(std::string sandbox,
                                        std::string there,
                                        std::string here,
                                        mode_t mode) {
  auto exchange = co_await session_.api.stream(
      "GET", target(sandbox, "", there), {}, {}, base::system_clock().in(30s));
  if (!exchange) co_return base::passing(exchange);
  auto const temporary = fmt::format("{}.{}.part", here, getpid());
  os::Fd file(open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode));
  if (!file) co_return base::fail_errno("write " + here);
  std::uint64_t expected = 0, received = 0;
  auto const length = (*exchange)->head.headers.get("Content-Length");
  bool const known =
      std::from_chars(length.data(), length.data() + length.size(), expected).ec == std::errc() &&
      !length.empty();
  progress_.begin(fs::path(here).filename().string());
  std::string buffer(chunk, '\0');
  base::Result<void> done;
  for (;;) {
    auto got = co_await (*exchange)->body().read_some(buffer);
    if (!got) done = base::passing(got);
    if (!got || *got == 0) break;
    if (::write(file.get(), buffer.data(), *got) != static_cast<ssize_t>(*got)) {
      done = base::fail_errno("write " + here);
      break;
    }
    received += *got;
    if (known && expected > 0)
      progress_.update(static_cast<int>(received * 100 / expected),
                       fmt::format("{} MiB", received >> 20));
  }
  progress_.clear();
  if (done && known && received != expected)
    done = base::fail(base::Code::unavailable, "the file came in part only");
  if (done && rename(temporary.c_str(), here.c_str()) != 0)
    done = base::fail_errno("write " + here);
  if (done)
    note_copied(sandbox + ":" + there, here, received);
  else
    unlink(temporary.c_str());
  co_return done;
}

}  // namespace

asio::awaitable<int> copy(Session session, CopyOptions options) {
  Copier copier(session, std::move(options));
  auto done = co_await copier.run();
  if (session.out.as_json()) session.out.document(json::object{{"copied", copier.take_copied()}});
  if (!done) co_return session.out.fail(done.error());
  co_return 0;
}

}  // namespace cli
