#pragma once

#include "cli/client.hpp"

#include <map>
#include <optional>

/// The verbs that talk to the API. Each writes data to Output's stdout and returns the exit code.
namespace cli {

struct CreateOptions {
  std::string template_name;
  std::optional<std::uint32_t> vcpus;
  std::string snapshot, idle_timeout;
  std::string memory, disk, timeout, on_timeout;  // with units; "" = the server's default
  std::vector<std::string> env, metadata;         // NAME=VALUE
  std::vector<std::string> allow;                 // see policy_verbs.hpp
  std::string policy_file;                        // "-" is stdin
  bool insecure = false;                          // no access token
  bool no_wait = false;
};

asio::awaitable<int> sandbox_create(Session session, CreateOptions options);

struct ListOptions {
  std::string state, template_name;
  std::vector<std::string> metadata;
  bool ids_only = false;
};

asio::awaitable<int> sandbox_list(Session session, ListOptions options);
asio::awaitable<int> sandbox_show(Session session, std::string id);
asio::awaitable<int> sandbox_remove(Session session, std::vector<std::string> ids, bool no_wait);
/// `timeout` like "30m", or "none".
asio::awaitable<int> sandbox_timeout(Session session, std::string id, std::string timeout);
asio::awaitable<int> sandbox_console(Session session, std::string id);

struct ExecOptions {
  std::string sandbox;
  std::vector<std::string> arguments;
  std::vector<std::string> env;
  std::string cwd, user, timeout;
  bool terminal = false;
};

asio::awaitable<int> exec(Session session, ExecOptions options);
/// A login shell with a terminal of its own; needs one here.
asio::awaitable<int> shell(Session session, ExecOptions options);

struct CopyOptions {
  std::vector<std::string> sources;  // "ID:path" or a local path
  std::string destination;
  std::string user;
};

asio::awaitable<int> copy(Session session, CopyOptions options);

struct KeyOptions {
  std::string name, role, project, expires_in;
  bool installation = false;
};

asio::awaitable<int> key_create(Session session, KeyOptions options);
asio::awaitable<int> key_list(Session session);
asio::awaitable<int> key_revoke(Session session, std::string id);
asio::awaitable<int> template_list(Session session);
asio::awaitable<int> node_list(Session session);
asio::awaitable<int> operation_show(Session session, std::string id, std::string wait);

struct EventOptions {
  std::string sandbox, from;  // from: an event's id
  std::size_t count = 0;      // 0: until interrupted
};

asio::awaitable<int> events(Session session, EventOptions options);

struct BenchOptions {
  std::uint32_t count = 10, concurrency = 1;
  std::uint32_t settle_s = 0;  // between two creates, for what is made ahead
  std::string template_name, memory;
  std::string json_file;
};

asio::awaitable<int> bench_create(Session session, BenchOptions options);

/// "A=1", "B=x=y" → an object; fails on one without '='.
base::Result<json::object> parse_pairs(std::vector<std::string> const& pairs,
                                       std::string_view what);

}  // namespace cli
