#include "agent/filesystem.hpp"
#include "agent/path.hpp"
#include "agent/watch_stream.hpp"
#include "base/id.hpp"

#include <cerrno>

#include <boost/json/object.hpp>

/// The part of filesystem.Filesystem that is about watching.
namespace agent {
namespace {

struct OpenedWatch {
  std::unique_ptr<Watch> watch;
  os::Fd readable;
};

asio::awaitable<RpcResult<OpenedWatch>> open_watch(std::string path, WatchOptions options) {
  auto opening = [path = std::move(path), options] { return Watch::open(path, options); };
  auto opened = co_await async::blocking(std::move(opening));
  if (!opened) co_return std::unexpected(rpc_error_of(opened.error()));
  auto readable = (*opened)->descriptor().duplicate();
  if (!readable) co_return std::unexpected(rpc_error_of(readable.error()));
  OpenedWatch watch{*std::move(opened), *std::move(readable)};
  co_return watch;
}

RpcResult<WatchOptions> options_of(json::value const& message) {
  Fields fields(message);
  WatchOptions options;
  options.recursive = fields.boolean("recursive");
  options.include_entry = fields.boolean("includeEntry");
  options.allow_network_mounts = fields.boolean("allowNetworkMounts");
  if (auto bad = fields.problem()) return std::unexpected(*std::move(bad));
  return options;
}

RpcResult<std::string> watcher_id_of(json::value const& message) {
  Fields fields(message);
  auto id = fields.text("watcherId");
  if (auto bad = fields.problem()) return std::unexpected(*std::move(bad));
  return id;
}

std::unexpected<RpcError> no_such_watcher(std::string const& id) {
  return rpc_fail(RpcCode::not_found, fmt::format("watcher with id {} not found", as_utf8(id)));
}

}  // namespace

RpcResult<void> FilesystemService::may_watch() const {
  if (polled_.size() + *streams_ < watchers_max) return {};
  return rpc_fail(RpcCode::resource_exhausted,
                  fmt::format("there are {} watchers already; remove some", watchers_max));
}

asio::awaitable<RpcResult<std::unique_ptr<MessageSource>>> FilesystemService::open_stream(
    RpcCall call, json::value message) {
  auto caller = caller_of(call, message);
  if (!caller) co_return std::unexpected(caller.error());
  auto const options = options_of(message);
  if (!options) co_return std::unexpected(options.error());
  if (auto allowed = may_watch(); !allowed) co_return std::unexpected(allowed.error());
  auto opened = co_await open_watch(caller->path, *options);
  if (!opened) co_return std::unexpected(opened.error());
  co_return make_watch_source(
      executor_, std::move(opened->watch), std::move(opened->readable), context_.etc_dir, streams_);
}

FilesystemService::Answer FilesystemService::create_watcher(Caller caller, json::value message) {
  auto const options = options_of(message);
  if (!options) co_return std::unexpected(options.error());
  if (auto allowed = may_watch(); !allowed) co_return std::unexpected(allowed.error());
  auto opened = co_await open_watch(caller.path, *options);
  if (!opened) co_return std::unexpected(opened.error());
  // Others may have come while this one was opened.
  if (auto allowed = may_watch(); !allowed) co_return std::unexpected(allowed.error());
  auto watch = std::make_shared<PolledWatch>(
      executor_, std::move(opened->watch), std::move(opened->readable), context_.etc_dir);
  auto const id = base::make_short_id('w');
  polled_.emplace(id, watch);
  tasks_.spawn("watcher", follow(std::move(watch)));
  co_return json::value(json::object{{"watcherId", id}});
}

asio::awaitable<void> FilesystemService::follow(std::shared_ptr<PolledWatch> watch) {
  while (!watch->removed)
    co_await watch->follow_once();
}

FilesystemService::Answer FilesystemService::watcher_events(json::value message) {
  auto const id = watcher_id_of(message);
  if (!id) co_return std::unexpected(id.error());
  auto const found = polled_.find(*id);
  if (found == polled_.end()) co_return no_such_watcher(*id);
  auto const watch = found->second;
  co_return co_await watch->events();
}

FilesystemService::Answer FilesystemService::remove_watcher(json::value message) {
  auto const id = watcher_id_of(message);
  if (!id) co_return std::unexpected(id.error());
  auto const found = polled_.find(*id);
  if (found == polled_.end()) co_return no_such_watcher(*id);
  found->second->remove();
  polled_.erase(found);
  co_return json::value(json::object());
}

asio::awaitable<void> FilesystemService::close() {
  for (auto const& [id, watch] : polled_)
    watch->remove();
  polled_.clear();
  tasks_.cancel();
  co_await tasks_.join();
}

}  // namespace agent
