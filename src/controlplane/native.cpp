#include "controlplane/native.hpp"

#include <charconv>

namespace controlplane {
namespace {

using base::Code;

constexpr std::size_t input_max = 4 << 20;
constexpr std::uint32_t page_max = 100;

}  // namespace

// The route table, by family. clang-format is off so that a route stays a line.
// clang-format off
std::vector<Native::Row> Native::owner_table() {
  return {
      {"GET", "/health", "getHealth", Permission::open, Repeat::none, &Native::get_health},
      {"GET", "/openapi.json", "getOpenapi", Permission::open, Repeat::none, &Native::get_openapi},
      {"GET", "/v1/me", "getMe", Permission::read, Repeat::none, &Native::get_me},
      {"GET", "/v1/organisations", "listOrganisations", Permission::installation, Repeat::none, &Native::list_organisations},
      {"POST", "/v1/organisations", "createOrganisation", Permission::installation, Repeat::replay, &Native::create_organisation},
      {"GET", "/v1/organisations/{organisation}", "getOrganisation", Permission::read, Repeat::none, &Native::get_organisation},
      {"GET", "/v1/projects", "listProjects", Permission::read, Repeat::none, &Native::list_projects},
      {"POST", "/v1/projects", "createProject", Permission::installation, Repeat::replay, &Native::create_project},
      {"GET", "/v1/projects/{project}", "getProject", Permission::read, Repeat::none, &Native::get_project},
      {"PATCH", "/v1/projects/{project}", "updateProject", Permission::installation, Repeat::none, &Native::update_project},
      {"GET", "/v1/keys", "listKeys", Permission::admin, Repeat::none, &Native::list_keys},
      {"POST", "/v1/keys", "createKey", Permission::admin, Repeat::replay, &Native::create_key},
      {"GET", "/v1/keys/{key}", "getKey", Permission::admin, Repeat::none, &Native::get_key},
      {"DELETE", "/v1/keys/{key}", "revokeKey", Permission::admin, Repeat::none, &Native::revoke_key},
      {"GET", "/v1/audit", "listAudit", Permission::admin, Repeat::none, &Native::list_audit},
      {"GET", "/v1/usage", "getUsage", Permission::read, Repeat::none, &Native::get_usage},
  };
}

std::vector<Native::Row> Native::sandbox_table() {
  return {
      {"GET", "/v1/sandboxes", "listSandboxes", Permission::read, Repeat::none, &Native::list_sandboxes},
      {"POST", "/v1/sandboxes", "createSandbox", Permission::write, Repeat::handler, &Native::create_sandbox},
      {"GET", "/v1/sandboxes/{sandbox}", "getSandbox", Permission::read, Repeat::none, &Native::get_sandbox},
      {"PATCH", "/v1/sandboxes/{sandbox}", "updateSandbox", Permission::write, Repeat::none, &Native::update_sandbox},
      {"DELETE", "/v1/sandboxes/{sandbox}", "deleteSandbox", Permission::write, Repeat::none, &Native::delete_sandbox},
      {"POST", "/v1/sandboxes/{sandbox}/token", "rotateSandboxToken", Permission::write, Repeat::replay, &Native::rotate_sandbox_token},
      {"GET", "/v1/sandboxes/{sandbox}/events", "streamSandboxEvents", Permission::read, Repeat::none, &Native::stream_sandbox_events},
      {"GET", "/v1/sandboxes/{sandbox}/metrics", "getSandboxMetrics", Permission::read, Repeat::none, &Native::get_sandbox_metrics},
      {"GET", "/v1/sandboxes/{sandbox}/console", "getSandboxConsole", Permission::write, Repeat::none, &Native::get_sandbox_console},
  };
}

std::vector<Native::Row> Native::command_table() {
  return {
      {"GET", "/v1/sandboxes/{sandbox}/commands", "listCommands", Permission::write, Repeat::none, &Native::list_commands},
      {"POST", "/v1/sandboxes/{sandbox}/commands", "startCommand", Permission::write, Repeat::replay, &Native::start_command, input_max},
      {"GET", "/v1/sandboxes/{sandbox}/commands/{command}", "getCommand", Permission::write, Repeat::none, &Native::get_command},
      {"GET", "/v1/sandboxes/{sandbox}/commands/{command}/output", "streamCommandOutput", Permission::write, Repeat::none, &Native::stream_command_output},
      {"POST", "/v1/sandboxes/{sandbox}/commands/{command}/stdin", "writeCommandStdin", Permission::write, Repeat::replay, &Native::write_command_stdin, input_max},
      {"DELETE", "/v1/sandboxes/{sandbox}/commands/{command}/stdin", "closeCommandStdin", Permission::write, Repeat::none, &Native::close_command_stdin},
      {"POST", "/v1/sandboxes/{sandbox}/commands/{command}/signal", "signalCommand", Permission::write, Repeat::replay, &Native::signal_command},
      {"POST", "/v1/sandboxes/{sandbox}/commands/{command}/resize", "resizeCommand", Permission::write, Repeat::replay, &Native::resize_command},
  };
}

std::vector<Native::Row> Native::file_table() {
  return {
      {"GET", "/v1/sandboxes/{sandbox}/files", "readFile", Permission::write, Repeat::none, &Native::read_file},
      {"PUT", "/v1/sandboxes/{sandbox}/files", "writeFile", Permission::write, Repeat::none, &Native::write_file, 0, true},
      {"DELETE", "/v1/sandboxes/{sandbox}/files", "removeFile", Permission::write, Repeat::none, &Native::remove_file},
      {"GET", "/v1/sandboxes/{sandbox}/files/stat", "statFile", Permission::write, Repeat::none, &Native::stat_file},
      {"GET", "/v1/sandboxes/{sandbox}/files/list", "listFiles", Permission::write, Repeat::none, &Native::list_files},
      {"POST", "/v1/sandboxes/{sandbox}/files/mkdir", "makeDirectory", Permission::write, Repeat::replay, &Native::make_directory},
      {"POST", "/v1/sandboxes/{sandbox}/files/move", "moveFile", Permission::write, Repeat::replay, &Native::move_file},
  };
}

std::vector<Native::Row> Native::other_table() {
  return {
      {"GET", "/v1/nodes/{node}/audit/checkpoints", "listAuditCheckpoints", Permission::installation, Repeat::none, &Native::list_checkpoints},
      {"DELETE", "/v1/nodes/{node}/audit/checkpoints", "acceptAudit", Permission::installation, Repeat::none, &Native::accept_audit},
      {"GET", "/v1/templates", "listTemplates", Permission::read, Repeat::none, &Native::list_templates},
      {"GET", "/v1/templates/{template}", "getTemplate", Permission::read, Repeat::none, &Native::get_template},
      {"GET", "/v1/nodes", "listNodes", Permission::installation, Repeat::none, &Native::list_nodes},
      {"GET", "/v1/nodes/{node}", "getNode", Permission::installation, Repeat::none, &Native::get_node},
      {"GET", "/v1/operations", "listOperations", Permission::read, Repeat::none, &Native::list_operations},
      {"GET", "/v1/operations/{operation}", "getOperation", Permission::read, Repeat::none, &Native::get_operation},
      {"GET", "/v1/events", "streamEvents", Permission::read, Repeat::none, &Native::stream_events},
  };
}

// clang-format on

std::vector<Native::Row> Native::table() {
  std::vector<Row> all;
  for (auto rows : {owner_table(),
                    sandbox_table(),
                    lives_table(),
                    command_table(),
                    file_table(),
                    other_table()})
    std::ranges::move(rows, std::back_inserter(all));
  return all;
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

bool is_head_only(Call const& call) noexcept {
  return call.request.head.method == "HEAD";
}

async::Task<Reply> finish_stream(Call& call) {
  auto finished = co_await call.response.finish();
  if (!finished) co_return base::passing(finished);
  co_return streamed_reply();
}

async::Task<store::SandboxRow> Native::live(Call& call) {
  return service_.get(
      call.owner.project_id, call.param("sandbox"), SandboxService::Ended::hide, call.deadline);
}

async::Task<GuestTarget> Native::guest_of(Call& call) {
  auto row = co_await live(call);
  if (!row) co_return base::passing(row);
  // On its way somewhere: where it arrives decides. One that wakes by itself is waited for below.
  auto const until = base::system_clock().in(options_.wake_max);
  while (domain::is_transitional(row->state) && row->state != domain::SandboxState::deleting &&
         !row->auto_resume && base::system_clock().steady_now() < until) {
    co_await async::sleep_for(std::chrono::milliseconds(50));
    call.deadline = base::system_clock().in(options_.after_wake);
    row = co_await live(call);
    if (!row) co_return base::passing(row);
  }
  bool const asleep =
      row->state != domain::SandboxState::creating && row->state != domain::SandboxState::deleting;
  if (row->state != domain::SandboxState::running && asleep && row->auto_resume) {
    auto woken = co_await service_.wake(
        asker_of(call), row->public_id, {}, base::system_clock().in(options_.wake_max));
    if (!woken) co_return base::passing(woken);
    row = std::move(woken);
    call.deadline = base::system_clock().in(options_.after_wake);
  }
  if (row->state != domain::SandboxState::running) {
    co_return base::fail(
        Code::conflict,
        fmt::format("the sandbox is {}; it has to run for this", domain::name_of(row->state)));
  }
  co_return GuestTarget{row->public_id, service_.access_token(*row)};
}

}  // namespace controlplane
