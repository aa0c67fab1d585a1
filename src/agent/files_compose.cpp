#include "agent/files.hpp"
#include "agent/filesystem_copy.hpp"
#include "agent/filesystem_tree.hpp"
#include "agent/path.hpp"
#include "base/id.hpp"
#include "os/fd.hpp"
#include "wire/codec.hpp"

#include <sys/stat.h>

#include <cerrno>

#include <boost/json/object.hpp>
#include <fcntl.h>
#include <unistd.h>

namespace agent {
namespace {

constexpr std::size_t request_bytes_max = 1 << 20;

struct Compose {
  std::vector<std::string> source_paths;
  std::string destination;
  std::optional<std::string> username;
};
BOOST_DESCRIBE_STRUCT(Compose, (), (source_paths, destination, username))

FileResult<void> join(std::vector<std::string> const& sources,
                      int target,
                      std::string const& path) {
  for (auto const& source : sources) {
    os::Fd part(::open(source.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    struct stat status{};
    if (!part && errno == ENOENT)
      return file_fail(ENOENT, fmt::format("source file not found: {}", source));
    if (!part || ::fstat(part.get(), &status) != 0) return file_fail_errno(errno, "open", source);
    if (!S_ISREG(status.st_mode))
      return file_fail(EINVAL, fmt::format("source path is not a regular file: {}", source));
    auto copied = copy_content(part.get(), target, path);
    if (!copied) return copied;
  }
  return {};
}

/// The destination changes at once or not at all: the joined file takes its name when it is whole.
/// The parts go then.
FileResult<void> compose_files(std::vector<std::string> const& sources,
                               std::string const& destination,
                               User const& user) {
  for (auto const& source : sources) {
    if (clean_path(source) == clean_path(destination))
      return file_fail(EINVAL,
                       fmt::format("source path \"{}\" cannot be the same as destination", source));
    struct stat status{};
    if (::stat(source.c_str(), &status) != 0)
      return file_fail(ENOENT, fmt::format("source file not found: {}", source));
    if (!S_ISREG(status.st_mode))
      return file_fail(EINVAL, fmt::format("source path is not a regular file: {}", source));
  }
  auto parents = ensure_directories(parent_of(destination), user);
  if (!parents) return parents;
  auto const temporary =
      fmt::format("{}.space-compose-{}", clean_path(destination), base::random_hex(8));
  os::Fd target(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (!target) return file_fail_errno(errno, "create", temporary);
  auto joined = join(sources, target.get(), destination);
  if (joined && ::fchown(target.get(), user.uid, user.gid) != 0)
    joined = file_fail_errno(errno, "change the owner of", temporary);
  if (joined && ::rename(temporary.c_str(), destination.c_str()) != 0)
    joined = file_fail_errno(errno, "move into place", destination);
  if (!joined) {
    ::unlink(temporary.c_str());
    return joined;
  }
  for (auto const& source : sources)
    ::unlink(source.c_str());
  return {};
}

}  // namespace

asio::awaitable<void> FilesHandler::compose(http::Request& request,
                                            http::ResponseWriter& response) const {
  auto const body = co_await request.body.read_all(request_bytes_max);
  if (!body)
    co_return co_await refuse(response,
                              {base::http_status_of(body.error().code()), body.error().message()});
  auto const asked =
      wire::decode_text<Compose>(*body, wire::UnknownKeys::ignore, request_bytes_max);
  if (!asked)
    co_return co_await refuse(
        response, {400, fmt::format("invalid request body: {}", asked.error().message())});
  if (asked->source_paths.empty())
    co_return co_await refuse(response, {400, "source_paths must not be empty"});
  if (asked->destination.empty())
    co_return co_await refuse(response, {400, "destination is required"});
  auto const user = find_caller(context_.etc_dir, asked->username, context_.default_user);
  if (!user)
    co_return co_await refuse(response,
                              {401,
                               fmt::format("error looking up user '{0}': unknown user {0}",
                                           asked->username.value_or(""))});

  std::vector<std::string> sources;
  for (auto const& source : asked->source_paths) {
    auto path = resolve_path(source, *user, context_.default_workdir);
    if (!path) co_return co_await refuse(response, {400, path.error().message()});
    sources.push_back(*std::move(path));
  }
  auto const destination = resolve_path(asked->destination, *user, context_.default_workdir);
  if (!destination) co_return co_await refuse(response, {400, destination.error().message()});
  auto composing = [sources, destination = *destination, user = *user] {
    return compose_files(sources, destination, user);
  };
  auto const composed = co_await async::blocking(std::move(composing));
  if (!composed) co_return co_await refuse(response, refusal_of(composed.error()));
  json::object const answer{{"path", as_utf8(*destination)},
                            {"name", as_utf8(base_name(*destination))},
                            {"type", "file"}};
  auto const sent = co_await response.send(json_answer(200, answer));
  static_cast<void>(sent);  // the caller left; nothing to do for it
}

}  // namespace agent
