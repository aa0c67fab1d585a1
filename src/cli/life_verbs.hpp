#pragma once

#include "cli/client.hpp"

/// Pause, suspend, resume, fork, snapshots, draining.
namespace CLI {
class App;
}

namespace cli {

struct MoveOptions {
  std::string verb;  // pause, suspend, resume
  std::vector<std::string> ids;
  std::string timeout;  // of a resume, like "30m"; "" as it was
  bool no_wait = false;
};

asio::awaitable<int> sandbox_move(Session session, MoveOptions options);

struct ForkOptions {
  std::string sandbox;
  int count = 1;
  std::string timeout;
};

void optional_count(CLI::App* app, ForkOptions& options);
asio::awaitable<int> sandbox_fork(Session session, ForkOptions options);

struct SnapshotOptions {
  std::string sandbox, name, expires_in;
};

asio::awaitable<int> sandbox_snapshot(Session session, SnapshotOptions options);
asio::awaitable<int> snapshot_list(Session session, std::string sandbox);
asio::awaitable<int> snapshot_remove(Session session, std::vector<std::string> ids);

struct DrainOptions {
  std::string node;
  bool off = false;
  bool no_wait = false;
};

asio::awaitable<int> node_drain(Session session, DrainOptions options);

}  // namespace cli
