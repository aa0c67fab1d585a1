#include "controlplane/native.hpp"

#include <charconv>

namespace controlplane {
namespace {

using base::Code;

constexpr std::size_t stdin_max = 4 << 20;
constexpr std::uint32_t page_max = 100;

}  // namespace

std::vector<Native::Row> const& Native::table() {
  using enum Permission;
  auto const replay = Repeat::replay;
  auto const once = Repeat::handler;
  auto const none = Repeat::none;
  using N = Native;
  static std::vector<Row> const rows{
      {"GET", "/health", "getHealth", open, none, &N::get_health},
      {"GET", "/openapi.json", "getOpenapi", open, none, &N::get_openapi},
      {"GET", "/v1/me", "getMe", read, none, &N::get_me},

      {"GET", "/v1/organisations", "listOrganisations", installation, none, &N::list_organisations},
      {"POST",
       "/v1/organisations",
       "createOrganisation",
       installation,
       replay,
       &N::create_organisation},
      {"GET",
       "/v1/organisations/{organisation}",
       "getOrganisation",
       read,
       none,
       &N::get_organisation},
      {"GET", "/v1/projects", "listProjects", read, none, &N::list_projects},
      {"POST", "/v1/projects", "createProject", installation, replay, &N::create_project},
      {"GET", "/v1/projects/{project}", "getProject", read, none, &N::get_project},
      {"PATCH", "/v1/projects/{project}", "updateProject", installation, none, &N::update_project},
      {"GET", "/v1/keys", "listKeys", admin, none, &N::list_keys},
      {"POST", "/v1/keys", "createKey", admin, replay, &N::create_key},
      {"GET", "/v1/keys/{key}", "getKey", admin, none, &N::get_key},
      {"DELETE", "/v1/keys/{key}", "revokeKey", admin, none, &N::revoke_key},
      {"GET", "/v1/audit", "listAudit", admin, none, &N::list_audit},
      {"GET", "/v1/usage", "getUsage", read, none, &N::get_usage},

      {"GET", "/v1/sandboxes", "listSandboxes", read, none, &N::list_sandboxes},
      {"POST", "/v1/sandboxes", "createSandbox", write, once, &N::create_sandbox},
      {"GET", "/v1/sandboxes/{sandbox}", "getSandbox", read, none, &N::get_sandbox},
      {"PATCH", "/v1/sandboxes/{sandbox}", "updateSandbox", write, none, &N::update_sandbox},
      {"DELETE", "/v1/sandboxes/{sandbox}", "deleteSandbox", write, none, &N::delete_sandbox},
      {"POST",
       "/v1/sandboxes/{sandbox}/token",
       "rotateSandboxToken",
       write,
       replay,
       &N::rotate_sandbox_token},
      {"GET",
       "/v1/sandboxes/{sandbox}/events",
       "streamSandboxEvents",
       read,
       none,
       &N::stream_sandbox_events},
      {"GET",
       "/v1/sandboxes/{sandbox}/metrics",
       "getSandboxMetrics",
       read,
       none,
       &N::get_sandbox_metrics},
      {"GET",
       "/v1/sandboxes/{sandbox}/console",
       "getSandboxConsole",
       write,
       none,
       &N::get_sandbox_console},

      {"GET", "/v1/sandboxes/{sandbox}/commands", "listCommands", write, none, &N::list_commands},
      {"POST",
       "/v1/sandboxes/{sandbox}/commands",
       "startCommand",
       write,
       replay,
       &N::start_command,
       stdin_max},
      {"GET",
       "/v1/sandboxes/{sandbox}/commands/{command}",
       "getCommand",
       write,
       none,
       &N::get_command},
      {"GET",
       "/v1/sandboxes/{sandbox}/commands/{command}/output",
       "streamCommandOutput",
       write,
       none,
       &N::stream_command_output},
      {"POST",
       "/v1/sandboxes/{sandbox}/commands/{command}/stdin",
       "writeCommandStdin",
       write,
       replay,
       &N::write_command_stdin,
       stdin_max},
      {"DELETE",
       "/v1/sandboxes/{sandbox}/commands/{command}/stdin",
       "closeCommandStdin",
       write,
       none,
       &N::close_command_stdin},
      {"POST",
       "/v1/sandboxes/{sandbox}/commands/{command}/signal",
       "signalCommand",
       write,
       replay,
       &N::signal_command},
      {"POST",
       "/v1/sandboxes/{sandbox}/commands/{command}/resize",
       "resizeCommand",
       write,
       replay,
       &N::resize_command},

      {"GET", "/v1/sandboxes/{sandbox}/files", "readFile", write, none, &N::read_file},
      {"PUT", "/v1/sandboxes/{sandbox}/files", "writeFile", write, none, &N::write_file, 0, true},
      {"DELETE", "/v1/sandboxes/{sandbox}/files", "removeFile", write, none, &N::remove_file},
      {"GET", "/v1/sandboxes/{sandbox}/files/stat", "statFile", write, none, &N::stat_file},
      {"GET", "/v1/sandboxes/{sandbox}/files/list", "listFiles", write, none, &N::list_files},
      {"POST",
       "/v1/sandboxes/{sandbox}/files/mkdir",
       "makeDirectory",
       write,
       replay,
       &N::make_directory},
      {"POST", "/v1/sandboxes/{sandbox}/files/move", "moveFile", write, replay, &N::move_file},

      {"GET", "/v1/templates", "listTemplates", read, none, &N::list_templates},
      {"GET", "/v1/templates/{template}", "getTemplate", read, none, &N::get_template},
      {"GET", "/v1/nodes", "listNodes", installation, none, &N::list_nodes},
      {"GET", "/v1/nodes/{node}", "getNode", installation, none, &N::get_node},
      {"GET", "/v1/operations", "listOperations", read, none, &N::list_operations},
      {"GET", "/v1/operations/{operation}", "getOperation", read, none, &N::get_operation},
      {"GET", "/v1/events", "streamEvents", read, none, &N::stream_events},
  };
  return rows;
}

void Native::add_routes(Router& router) {
  for (auto const& row : table()) {
    Route route;
    route.method = row.method;
    route.pattern = row.pattern;
    route.operation_id = row.operation_id;
    route.permission = row.permission;
    route.repeat = row.repeat;
    route.body_max = row.body_max;
    route.streams_body = row.streams_body;
    route.handler = [this, member = row.member](Call& call) { return (this->*member)(call); };
    router.add(std::move(route));
  }
}

Asker asker_of(Call const& call) {
  return {call.owner, call.idempotency_key, call.request_sha256};
}

base::Result<std::uint32_t> limit_of(Call const& call) {
  auto const text = call.query_value("limit");
  if (!text) return page_max;
  std::uint32_t limit = 0;
  auto const [end, error] = std::from_chars(text->data(), text->data() + text->size(), limit);
  if (error != std::errc() || end != text->data() + text->size() || limit < 1 || limit > page_max) {
    return base::fail(Code::invalid_argument, fmt::format("limit: expected 1 to {}", page_max));
  }
  return limit;
}

base::Result<std::chrono::milliseconds> wait_of(Call const& call, std::chrono::seconds most) {
  auto const text = call.query_value("wait");
  if (!text) return std::chrono::milliseconds(0);
  double seconds = 0;
  auto const [end, error] = std::from_chars(text->data(), text->data() + text->size(), seconds);
  // Written so that a NaN fails.
  bool const good = error == std::errc() && end == text->data() + text->size() && seconds >= 0 &&
                    seconds <= static_cast<double>(most.count());
  if (!good)
    return base::fail(Code::invalid_argument,
                      fmt::format("wait: expected 0 to {} seconds", most.count()));
  return std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000));
}

base::Result<void> check_name(std::string_view name) {
  auto const allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == ' ' ||
           c == '.' || c == '_' || c == '-';
  };
  bool const good = !name.empty() && name.size() <= 100 && std::ranges::all_of(name, allowed) &&
                    name.front() != ' ' && name.back() != ' ';
  if (good) return {};
  return base::fail(
      Code::invalid_argument,
      "name: expected 1 to 100 letters, digits, spaces, dots, dashes and underscores");
}

async::Task<void> begin_events(Call& call) {
  http::ResponseHead head;
  head.headers = call.extra_headers;
  head.headers.add("Content-Type", "text/event-stream");
  head.headers.add("Cache-Control", "no-cache");
  head.headers.add("X-Accel-Buffering", "no");
  return call.response.begin(std::move(head));
}

async::Task<store::SandboxRow> Native::live(Call& call) {
  return service_.get(
      call.owner.project_id, call.param("sandbox"), SandboxService::Ended::hide, call.deadline);
}

async::Task<GuestTarget> Native::guest_of(Call& call) {
  auto row = co_await live(call);
  if (!row) co_return base::passing(row);
  if (row->state != domain::SandboxState::running) {
    co_return base::fail(
        Code::conflict,
        fmt::format("the sandbox is {}; it has to run for this", domain::name_of(row->state)));
  }
  co_return GuestTarget{row->public_id, service_.access_token(*row)};
}

}  // namespace controlplane
