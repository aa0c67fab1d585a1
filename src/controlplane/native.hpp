#pragma once

#include "base/id.hpp"
#include "controlplane/guest_client.hpp"
#include "controlplane/router.hpp"
#include "controlplane/sandbox_service.hpp"
#include "wire/codec.hpp"

/// The native /v1 routes: api/openapi.yaml, path by path. Each file below holds one family.
namespace controlplane {

class Native {
 public:
  struct Options {
    std::string domain;  // sandboxes are at {port}-{sandbox}.{domain}
    std::uint32_t default_timeout_s = 3600;
    std::chrono::seconds wait_max{600};
    std::chrono::milliseconds heartbeat{15'000};   // of event streams
    std::chrono::seconds wake_max{60};             // a command waits for its sandbox that long
    std::chrono::milliseconds after_wake{10'000};  // what a command then has, as without
  };

  Native(SandboxService& service,
         store::Store& store,
         Nodes& nodes,
         WorkerClient& workers,
         EventHub& hub,
         GuestClient& guests,
         Options options)
      : service_(service),
        store_(store),
        nodes_(nodes),
        workers_(workers),
        hub_(hub),
        guests_(guests),
        options_(std::move(options)) {}

  /// The Native must outlive the router.
  void add_routes(Router& router);

 private:
  using Member = async::Task<Reply> (Native::*)(Call&);

  struct Row {
    char const* method;
    char const* pattern;
    char const* operation_id;
    Permission permission;
    Repeat repeat;
    Member member;
    std::size_t body_max = 1 << 20;
    bool streams_body = false;
  };

  static std::vector<Row> table();
  static std::vector<Row> owner_table();
  static std::vector<Row> sandbox_table();
  static std::vector<Row> command_table();
  static std::vector<Row> file_table();
  static std::vector<Row> other_table();

  // native_service.cpp: what is about the installation
  async::Task<Reply> get_health(Call& call);
  async::Task<Reply> get_openapi(Call& call);
  async::Task<Reply> get_me(Call& call);
  async::Task<Reply> list_templates(Call& call);
  async::Task<Reply> get_template(Call& call);
  async::Task<Reply> list_checkpoints(Call& call);
  async::Task<Reply> accept_audit(Call& call);
  async::Task<Reply> list_nodes(Call& call);
  async::Task<Reply> get_node(Call& call);
  async::Task<Reply> list_operations(Call& call);
  async::Task<Reply> get_operation(Call& call);
  async::Task<Reply> stream_events(Call& call);
  async::Task<Reply> stream_sandbox_events(Call& call);
  async::Task<Reply> stream_feed(Call& call, std::string sandbox);
  asio::awaitable<void> follow(Call& call, EventHub::Feed feed);

  // native_owners.cpp
  async::Task<Reply> list_organisations(Call& call);
  async::Task<Reply> create_organisation(Call& call);
  async::Task<Reply> get_organisation(Call& call);
  async::Task<Reply> list_projects(Call& call);
  async::Task<Reply> create_project(Call& call);
  async::Task<Reply> get_project(Call& call);
  async::Task<Reply> update_project(Call& call);
  async::Task<Reply> get_usage(Call& call);
  async::Task<Reply> list_keys(Call& call);
  async::Task<Reply> create_key(Call& call);
  async::Task<Reply> get_key(Call& call);
  async::Task<Reply> revoke_key(Call& call);
  async::Task<Reply> list_audit(Call& call);
  async::Task<store::ProjectRow> project_for(Call& call, std::string public_id);

  // native_sandboxes.cpp
  async::Task<Reply> list_sandboxes(Call& call);
  async::Task<Reply> create_sandbox(Call& call);
  async::Task<Reply> get_sandbox(Call& call);
  async::Task<Reply> update_sandbox(Call& call);
  async::Task<Reply> delete_sandbox(Call& call);
  async::Task<Reply> rotate_sandbox_token(Call& call);
  async::Task<Reply> get_sandbox_metrics(Call& call);
  async::Task<Reply> get_sandbox_console(Call& call);
  async::Task<Reply> answer_change(Call& call,
                                   Started started,
                                   std::chrono::milliseconds wait,
                                   int done_status);
  json::object full_view(Call const& call, store::SandboxRow const& row) const;

  // native_lives.cpp
  static std::vector<Row> lives_table();
  /// Pause or suspend: what they are asked and answer is the same.
  using Stop = async::Task<Started> (SandboxService::*)(Asker, std::string, base::Deadline);
  async::Task<Reply> stop_sandbox(Call& call, Stop stop);
  async::Task<Reply> pause_sandbox(Call& call);
  async::Task<Reply> suspend_sandbox(Call& call);
  async::Task<Reply> resume_sandbox(Call& call);
  async::Task<Reply> fork_sandbox(Call& call);
  async::Task<Reply> take_snapshot(Call& call);
  async::Task<Reply> list_snapshots(Call& call);
  async::Task<Reply> get_snapshot(Call& call);
  async::Task<Reply> delete_snapshot(Call& call);
  async::Task<Reply> drain_node(Call& call);

  // native_commands.cpp
  async::Task<Reply> list_commands(Call& call);
  async::Task<Reply> start_command(Call& call);
  async::Task<Reply> get_command(Call& call);
  async::Task<Reply> stream_command_output(Call& call);
  async::Task<Reply> write_command_stdin(Call& call);
  async::Task<Reply> close_command_stdin(Call& call);
  async::Task<Reply> signal_command(Call& call);
  async::Task<Reply> resize_command(Call& call);
  asio::awaitable<void> relay_output(Call& call,
                                     std::unique_ptr<GuestStream> stream,
                                     std::string sandbox);
  async::Task<void> why_cut(std::string project_id, std::string sandbox);
  async::Task<Reply> tell_command(Call& call, std::string method, json::object message);
  static json::object command_view(json::object const& process);

  // native_files.cpp
  async::Task<Reply> read_file(Call& call);
  async::Task<Reply> write_file(Call& call);
  async::Task<Reply> remove_file(Call& call);
  async::Task<Reply> stat_file(Call& call);
  async::Task<Reply> list_files(Call& call);
  async::Task<Reply> make_directory(Call& call);
  async::Task<Reply> move_file(Call& call);

  /// The caller's sandbox with its address in the data plane: not_found, or conflict when it does
  /// not run.
  async::Task<GuestTarget> guest_of(Call& call);
  /// The caller's live sandbox.
  async::Task<store::SandboxRow> live(Call& call);

  SandboxService& service_;
  store::Store& store_;
  Nodes& nodes_;
  WorkerClient& workers_;
  EventHub& hub_;
  GuestClient& guests_;
  Options options_;
};

// For the files above.
Asker asker_of(Call const& call);

/// The body as a struct; unknown fields are errors, an absent body is {}.
template <class T> base::Result<T> decode_body(Call const& call) {
  auto value = body_of(call);
  if (!value) return base::passing(value);
  return wire::decode<T>(*value);
}

/// `limit` of a list: 1 to 100.
base::Result<std::uint32_t> limit_of(Call const& call);
/// `wait` in seconds, fractions allowed; 0 when absent.
base::Result<std::chrono::milliseconds> wait_of(Call const& call, std::chrono::seconds most);
/// 1 to 100 letters, digits, space and ._-
base::Result<void> check_name(std::string_view name);

/// Begins a stream of server-sent events with the headers that every answer carries.
async::Task<void> begin_events(Call& call);

/// HEAD: what a stream would begin with is all that is asked for, and a stream may never end.
bool is_head_only(Call const& call) noexcept;
/// Ends a begun answer with what was written of it.
async::Task<Reply> finish_stream(Call& call);

}  // namespace controlplane
