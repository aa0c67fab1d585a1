#pragma once

#include "cli/client.hpp"

/// One command in a sandbox as the command line sees it: started, fed, read to its end. The stream
/// of its output is taken up again where it was cut.
namespace cli {

/// How it ended.
struct CommandEnd {
  int exit_code = 0;      // the command's own; 128 + signal when one ended it
  std::string complaint;  // what to tell the person; "" for an ordinary end
};

/// Pure: the `end` event's data → what a shell would return. "signal: killed" is 137.
CommandEnd end_of(json::value const& data);

class RemoteCommand {
 public:
  RemoteCommand(Api& api, std::string sandbox) : api_(api), sandbox_(std::move(sandbox)) {}

  /// `request`: StartCommand of api/openapi.yaml.
  async::Task<void> start(json::object request);
  using Sink = std::function<void(std::string_view kind, std::string_view bytes)>;
  /// Hands each piece of output to `sink` ("stdout", "stderr", "pty") until the end. A stream that
  /// breaks is continued for up to a minute; what nobody read in time is told to `lost`.
  async::Task<CommandEnd> follow(Sink sink, std::function<void(std::int64_t bytes)> lost);
  async::Task<void> write_input(std::string bytes);
  async::Task<void> close_input();
  /// "TERM" or "KILL".
  async::Task<void> send_signal(std::string name);
  async::Task<void> resize(std::uint16_t columns, std::uint16_t rows);

 private:
  std::string path(std::string_view below) const;
  /// Reads one connection's worth. Nothing when it was cut before the end.
  async::Task<std::optional<CommandEnd>> follow_once();
  base::Result<std::optional<CommandEnd>> take(std::string_view type, json::value const& data);

  Api& api_;
  std::string sandbox_;
  std::string id_{};
  std::string last_event_{};
  Sink sink_{};
  std::function<void(std::int64_t)> lost_{};
};

}  // namespace cli
