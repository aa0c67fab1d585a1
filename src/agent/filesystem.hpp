#pragma once

#include "agent/connect_rpc.hpp"
#include "agent/context.hpp"
#include "agent/users.hpp"
#include "async/task.hpp"

#include <map>
#include <memory>
#include <string>

namespace agent {

struct PolledWatch;

/// filesystem.Filesystem: look, list, make, move, remove and watch, with root's rights: the user
/// who is named decides where relative paths begin and who owns what is made. Whoever may call this
/// may run commands as root, too, so it is no way around anything. Blocking work runs on the pool.
/// Watchers that clients poll live here until they are removed; awaited close() ends them.
class FilesystemService final : public RpcService {
 public:
  static constexpr std::size_t entries_max = 100'000;  // of one ListDir
  static constexpr std::size_t watchers_max =
      64;  // polled ones and streams together; each takes an inotify instance

  /// `context` outlives the service.
  FilesystemService(asio::any_io_executor executor, Context const& context);
  ~FilesystemService() override;

  std::string_view name() const override { return "filesystem.Filesystem"; }

  RpcKind kind_of(std::string_view method) const override;
  asio::awaitable<RpcResult<json::value>> unary(RpcCall call, json::value message) override;
  asio::awaitable<RpcResult<std::unique_ptr<MessageSource>>> open_stream(
      RpcCall call, json::value message) override;

  /// Removes all watchers and joins their tasks.
  asio::awaitable<void> close();

 private:
  using Answer = asio::awaitable<RpcResult<json::value>>;

  struct Caller {
    User user;
    std::string path;
  };

  RpcResult<User> user_of(RpcCall const& call) const;
  RpcResult<std::string> path_for(std::string const& text, User const& user) const;
  RpcResult<Caller> caller_of(RpcCall const& call, json::value const& message) const;

  Answer stat(Caller caller);
  Answer make_dir(Caller caller, std::optional<mode_t> mode);
  Answer list_dir(Caller caller, std::uint32_t depth);
  Answer remove(Caller caller);
  Answer move(RpcCall call, json::value message);
  Answer create_watcher(Caller caller, json::value message);
  Answer watcher_events(json::value message);
  Answer remove_watcher(json::value message);
  asio::awaitable<void> follow(std::shared_ptr<PolledWatch> watch);
  RpcResult<void> may_watch() const;

  asio::any_io_executor executor_;
  Context const& context_;
  std::map<std::string, std::shared_ptr<PolledWatch>> polled_;
  std::shared_ptr<std::size_t> streams_ = std::make_shared<std::size_t>(0);
  async::TaskGroup tasks_;
};

}  // namespace agent
