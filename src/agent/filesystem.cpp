#include "agent/filesystem.hpp"

#include "agent/filesystem_entry.hpp"
#include "agent/filesystem_tree.hpp"
#include "agent/path.hpp"
#include "agent/watch_stream.hpp"

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>

namespace agent {
namespace {

/// "lstat and say it as JSON", the end of every method that answers with an entry.
RpcResult<json::value> entry_answer(std::string const& path, std::string const& etc_dir) {
  auto const entry = entry_of(path);
  if (!entry) return std::unexpected(rpc_error_of(entry.error()));
  return json::value(json::object{{"entry", json_of(*entry, OwnerNames(etc_dir))}});
}

RpcResult<json::value> list_answer(std::string const& path,
                                   std::uint32_t depth,
                                   std::string const& etc_dir) {
  auto const entries = list_directory(path, depth, FilesystemService::entries_max);
  if (!entries) return std::unexpected(rpc_error_of(entries.error()));
  OwnerNames const names(etc_dir);
  json::array array;
  array.reserve(entries->size());
  for (auto const& entry : *entries)
    array.push_back(json_of(entry, names));
  return json::value(json::object{{"entries", std::move(array)}});
}

/// Ours beyond the protocol: the permission bits of a new directory.
RpcResult<std::optional<mode_t>> mode_in(json::value const& message) {
  Fields fields(message);
  if (!fields.has("mode")) return std::nullopt;
  auto const mode = fields.u32("mode");
  if (auto bad = fields.problem()) return std::unexpected(*std::move(bad));
  if (mode > 0777) return rpc_fail(RpcCode::invalid_argument, "mode: expected 0 to 511");
  return mode;
}

}  // namespace

FilesystemService::FilesystemService(asio::any_io_executor executor, Context const& context)
    : executor_(executor), context_(context), tasks_(executor) {}

FilesystemService::~FilesystemService() = default;

RpcKind FilesystemService::kind_of(std::string_view method) const {
  if (method == "WatchDir") return RpcKind::server_stream;
  for (auto const known : {"Stat",
                           "MakeDir",
                           "Move",
                           "ListDir",
                           "Remove",
                           "CreateWatcher",
                           "GetWatcherEvents",
                           "RemoveWatcher"})
    if (method == known) return RpcKind::unary;
  return RpcKind::unknown;
}

RpcResult<User> FilesystemService::user_of(RpcCall const& call) const {
  auto user = find_caller(context_.etc_dir, call.username, context_.default_user);
  if (!user) return std::unexpected(rpc_error_of(user.error()));
  return *std::move(user);
}

RpcResult<std::string> FilesystemService::path_for(std::string const& text,
                                                   User const& user) const {
  auto path = resolve_path(text, user, context_.default_workdir);
  if (!path) return std::unexpected(rpc_error_of(path.error()));
  return *std::move(path);
}

RpcResult<FilesystemService::Caller> FilesystemService::caller_of(
    RpcCall const& call, json::value const& message) const {
  auto user = user_of(call);
  if (!user) return std::unexpected(user.error());
  Fields fields(message);
  auto const text = fields.text("path");
  if (auto bad = fields.problem()) return std::unexpected(*std::move(bad));
  auto path = path_for(text, *user);
  if (!path) return std::unexpected(path.error());
  return Caller{*std::move(user), *std::move(path)};
}

asio::awaitable<RpcResult<json::value>> FilesystemService::unary(RpcCall call,
                                                                 json::value message) {
  auto const& method = call.method;
  if (method == "GetWatcherEvents") co_return co_await watcher_events(std::move(message));
  if (method == "RemoveWatcher") co_return co_await remove_watcher(std::move(message));
  if (method == "Move") co_return co_await move(std::move(call), std::move(message));
  auto caller = caller_of(call, message);
  if (!caller) co_return std::unexpected(caller.error());
  // An empty path means the working directory, which nobody means to remove.
  if (method == "Remove" && Fields(message).text("path").empty())
    co_return rpc_fail(RpcCode::invalid_argument, "path is required");
  if (method == "Stat") co_return co_await stat(*std::move(caller));
  if (method == "MakeDir") {
    auto const mode = mode_in(message);
    if (!mode) co_return std::unexpected(mode.error());
    co_return co_await make_dir(*std::move(caller), *mode);
  }
  if (method == "Remove") co_return co_await remove(*std::move(caller));
  if (method == "CreateWatcher")
    co_return co_await create_watcher(*std::move(caller), std::move(message));
  Fields fields(message);
  auto const depth = fields.u32("depth");
  if (auto bad = fields.problem()) co_return std::unexpected(*std::move(bad));
  co_return co_await list_dir(*std::move(caller), depth);
}

FilesystemService::Answer FilesystemService::stat(Caller caller) {
  auto work = [path = std::move(caller.path), etc_dir = context_.etc_dir] {
    return entry_answer(path, etc_dir);
  };
  co_return co_await async::blocking(std::move(work));
}

FilesystemService::Answer FilesystemService::make_dir(Caller caller, std::optional<mode_t> mode) {
  auto work = [path = std::move(caller.path),
               user = caller.user,
               mode,
               etc_dir = context_.etc_dir]() -> RpcResult<json::value> {
    auto const made = make_directory(path, user, mode);
    if (!made) return std::unexpected(rpc_error_of(made.error()));
    return entry_answer(path, etc_dir);
  };
  co_return co_await async::blocking(std::move(work));
}

FilesystemService::Answer FilesystemService::list_dir(Caller caller, std::uint32_t depth) {
  auto work = [path = std::move(caller.path), depth, etc_dir = context_.etc_dir] {
    return list_answer(path, depth, etc_dir);
  };
  co_return co_await async::blocking(std::move(work));
}

FilesystemService::Answer FilesystemService::remove(Caller caller) {
  auto work = [path = std::move(caller.path)]() -> RpcResult<json::value> {
    auto const removed = remove_tree(path);
    if (!removed) return std::unexpected(rpc_error_of(removed.error()));
    return json::value(json::object());
  };
  co_return co_await async::blocking(std::move(work));
}

FilesystemService::Answer FilesystemService::move(RpcCall call, json::value message) {
  auto user = user_of(call);
  if (!user) co_return std::unexpected(user.error());
  Fields fields(message);
  auto const source_text = fields.text("source");
  auto const destination_text = fields.text("destination");
  if (auto bad = fields.problem()) co_return std::unexpected(*std::move(bad));
  if (source_text.empty() || destination_text.empty())
    co_return rpc_fail(RpcCode::invalid_argument, "source and destination are both needed");
  auto source = path_for(source_text, *user);
  if (!source) co_return std::unexpected(source.error());
  auto destination = path_for(destination_text, *user);
  if (!destination) co_return std::unexpected(destination.error());
  auto work = [source = *std::move(source),
               destination = *std::move(destination),
               user = *user,
               etc_dir = context_.etc_dir]() -> RpcResult<json::value> {
    auto const moved = move_path(source, destination, user);
    if (!moved) return std::unexpected(rpc_error_of(moved.error()));
    return entry_answer(destination, etc_dir);
  };
  co_return co_await async::blocking(std::move(work));
}

}  // namespace agent
