#include "controlplane/e2b_routes.hpp"
#include "domain/labels.hpp"
#include "domain/template_name.hpp"
#include "domain/timeouts.hpp"

#include <algorithm>
#include <charconv>

namespace controlplane::e2b {
namespace {

using base::Code;
using domain::SandboxState;

constexpr std::int64_t refresh_least_s = 15;
constexpr std::int64_t refresh_most_s = 3600;
constexpr std::int64_t connect_default_s = 300;
constexpr std::uint32_t page_max = 100;

bool is_present(json::value const& value) {
  if (auto const* array = value.if_array()) return !array->empty();
  if (auto const* object = value.if_object()) return !object->empty();
  return !value.is_null();
}

bool has(json::value const& value, std::string_view key) {
  auto const* object = value.if_object();
  auto const* found = object ? object->if_contains(key) : nullptr;
  return found && is_present(*found);
}

/// What a create asks for and this version cannot do: a sentence, "" when there is nothing of the
/// kind. Refused instead of ignored: a sandbox that is killed at its timeout although it was to be
/// paused loses its user's data.
std::string unavailable_part(NewSandbox const& body) {
  if (body.autoPause.value_or(false) && !body.autoPauseMemory.value_or(true)) {
    return "autoPauseMemory false is not available in this version: a pause keeps memory and disk";
  }
  if (is_present(body.volumeMounts))
    return "volumeMounts are not available in this version: there are no volumes yet";
  if (has(body.network, "egressProxy")) return std::string(no_proxy);
  if (has(body.iam, "tokens")) return "iam tokens are not available in this version";
  return {};
}

/// The service's spelling: "alias:tag". A namespace is the caller's own project or does not exist.
base::Result<std::string> template_of(NewSandbox const& body, store::KeyOwner const& owner) {
  auto name = domain::parse_template_name(body.templateID);
  if (!name) return base::passing(name, "templateID");
  if (!name->name_space.empty() && name->name_space != owner.project_public_id) {
    return base::fail(Code::not_found, fmt::format("template '{}' not found", body.templateID));
  }
  if (name->tag == domain::default_tag) return name->alias;
  return name->alias + ":" + name->tag;
}

base::Result<CreateSpec> spec_of(NewSandbox body,
                                 store::KeyOwner const& owner,
                                 std::chrono::seconds timeout) {
  CreateSpec spec;
  spec.api = "e2b";
  spec.timeout_s = static_cast<std::uint32_t>(timeout.count());
  spec.secure = body.secure.value_or(true);
  spec.on_timeout = body.autoPause.value_or(false) ? "suspend" : "delete";
  spec.auto_resume = body.autoResume && body.autoResume->enabled;
  spec.idle_timeout_s = 0;  // these clients say themselves when a sandbox is to pause
  auto name = template_of(body, owner);
  if (!name) return base::passing(name);
  spec.template_name = std::move(*name);
  auto network = network_of(body, spec.secure);
  if (!network) return base::passing(network);
  spec.policy = egress_of(*network);
  spec.network = std::move(*network);
  if (body.metadata) spec.metadata = std::move(*body.metadata);
  if (auto checked = domain::check_metadata(spec.metadata); !checked) return base::passing(checked);
  if (body.envVars) spec.env = std::move(*body.envVars);
  if (auto checked = domain::check_environment(spec.env); !checked) return base::passing(checked);
  return spec;
}

/// `state=running,paused`; also several parameters.
base::Result<std::vector<SandboxState>> states_asked(Call const& call) {
  std::vector<SandboxState> states;
  for (auto const& [name, value] : call.query) {
    if (name != "state") continue;
    for (std::string_view rest = value;;) {
      auto const comma = rest.find(',');
      auto const one = rest.substr(0, comma);
      if (one != "running" && one != "paused")
        return base::fail(Code::invalid_argument, "state: expected running or paused");
      std::ranges::copy(states_shown_as(one), std::back_inserter(states));
      if (comma == std::string_view::npos) break;
      rest.remove_prefix(comma + 1);
    }
  }
  if (states.empty()) {
    states = states_shown_as("running");
    std::ranges::copy(states_shown_as("paused"), std::back_inserter(states));
  }
  return states;
}

base::Result<store::SandboxFilter> filter_of(Call const& call) {
  store::SandboxFilter filter;
  filter.project_id = call.owner.project_id;
  auto states = states_asked(call);
  if (!states) return base::passing(states);
  filter.states = std::move(*states);
  auto metadata = domain::parse_metadata_filter(call.query_value("metadata").value_or(""));
  if (!metadata) return base::passing(metadata);
  filter.metadata = std::move(*metadata);
  auto const limit = query_number(call, "limit", 1, page_max);
  if (!limit) return std::unexpected(limit.error());
  filter.limit = static_cast<std::uint32_t>(limit->value_or(page_max));
  auto const order = call.query_value("order").value_or("desc");
  if (order != "asc" && order != "desc")
    return base::fail(Code::invalid_argument, "order: expected asc or desc");
  filter.oldest_first = order == "asc";
  filter.template_or_name = call.query_value("template").value_or("");
  if (auto const text = call.query_value("startedAfter")) {
    filter.started_after = parse_rfc3339(*text);
    if (!filter.started_after)
      return base::fail(Code::invalid_argument,
                        "startedAfter: expected a time such as 2030-01-01T00:00:00Z");
  }
  if (auto const token = call.query_value("nextToken"); token && !token->empty()) {
    auto cursor = parse_cursor(*token, filter.oldest_first);
    if (!cursor) return base::passing(cursor);
    filter.after_time = cursor->time;
    filter.after_id = std::move(cursor->sandbox);
  }
  return filter;
}

/// The values of `network.rules`, out of the document. From then on neither the body nor what is
/// kept of it for repeats has them; two creates that differ in a value alone count as one.
base::Result<std::vector<HeaderRule>> take_secrets(Call& call, json::value& document) {
  auto* body = document.if_object();
  auto* network = body ? body->if_contains("network") : nullptr;
  auto* rules =
      network && network->is_object() ? network->get_object().if_contains("rules") : nullptr;
  if (!rules || rules->is_null()) return std::vector<HeaderRule>();
  Wipe const wipe_body{call.body};
  auto taken = take_header_rules(*rules);
  if (taken && !call.request_sha256.empty())
    call.request_sha256 = sha256_hex(call.request.head.target + "\n" + wire::to_text(document));
  return taken;
}

}  // namespace

std::unexpected<base::Error> no_such_sandbox(std::string_view id) {
  return base::fail(
      Code::not_found,
      fmt::format("Sandbox \"{}\" doesn't exist or you don't have access to it", id.substr(0, 64)));
}

void E2b::add_sandbox_routes(Router& router) {
  auto const add = [&](std::string method, std::string pattern, Repeat repeat, Handler handler) {
    add_route(router, std::move(method), std::move(pattern), std::move(handler), repeat);
  };
  using enum Repeat;
  // Timeouts and connects may be repeated as they are: no answer needs to be kept.
  add("POST", "/sandboxes", handler, [this](Call& call) { return create(call, 15, false); });
  add("POST", "/v2/sandboxes", handler, [this](Call& call) { return create(call, 300, true); });
  add("GET", "/sandboxes", none, [this](Call& call) { return list(call, false); });
  add("GET", "/v2/sandboxes", none, [this](Call& call) { return list(call, true); });
  add("GET", "/sandboxes/{id}", none, [this](Call& call) { return show(call); });
  add("DELETE", "/sandboxes/{id}", none, [this](Call& call) { return remove(call); });
  add("POST", "/sandboxes/{id}/timeout", handler, [this](Call& call) { return set_timeout(call); });
  add("POST", "/sandboxes/{id}/refreshes", handler, [this](Call& call) { return refresh(call); });
  add("POST", "/sandboxes/{id}/connect", handler, [this](Call& call) { return connect(call); });
  add("POST", "/v2/sandboxes/{id}/connect", handler, [this](Call& call) { return connect(call); });
}

async::Task<store::SandboxRow> E2b::visible(Call& call) {
  auto const& asked = call.param("id");
  auto const id = std::string(domain::sandbox_id_in(asked));
  if (id.empty()) co_return no_such_sandbox(asked);
  auto row =
      co_await service_.get(call.owner.project_id, id, SandboxService::Ended::hide, call.deadline);
  if (!row && row.error().code() == Code::not_found) co_return no_such_sandbox(asked);
  if (!row) co_return base::passing(row);
  if (!shown_state(row->state)) co_return no_such_sandbox(asked);
  co_return row;
}

Reply E2b::sandbox_answer(int status, store::SandboxRow const& row) const {
  return json_reply(
      status,
      sandbox_reply(row, service_.access_token(row), service_.traffic_token(row), options_.domain));
}

async::Task<Reply> E2b::create(Call& call, std::int64_t default_timeout_s, bool always_secure) {
  auto document = body_of(call);
  if (!document) co_return base::passing(document);
  auto secrets = take_secrets(call, *document);
  if (!secrets) co_return base::passing(secrets);
  auto body = wire::decode<NewSandbox>(*document, wire::UnknownKeys::ignore);
  if (!body) co_return base::passing(body);
  auto const timeout = domain::check_timeout(body->timeout.value_or(default_timeout_s),
                                             {.longest = options_.timeout_max});
  if (!timeout) co_return std::unexpected(timeout.error());
  if (auto const part = unavailable_part(*body); !part.empty()) co_return error_reply(501, part);
  if (always_secure) body->secure = true;
  auto const asked_template = body->templateID;
  auto spec = spec_of(std::move(*body), call.owner, *timeout);
  if (!spec) co_return base::passing(spec);
  auto sealed = co_await seal(std::move(*secrets), call.deadline);
  if (!sealed) co_return base::passing(sealed);
  spec->credentials = std::move(*sealed);
  auto started = co_await service_.create(asker_of(call), std::move(*spec), call.deadline);
  if (!started && started.error().code() == Code::not_found) {
    co_return base::fail(Code::not_found, fmt::format("template '{}' not found", asked_template));
  }
  if (!started) co_return base::passing(started);
  auto const until = base::system_clock().in(options_.create_wait);
  auto done = co_await service_.wait_for(std::move(*started), until);
  if (!done) co_return base::passing(done);
  auto const& operation = done->operation;
  if (operation.state == "failed") {
    co_return base::fail(base::code_named(operation.error_code),
                         "the sandbox could not be started: " + operation.error_message);
  }
  if (!operation.done()) {
    co_return base::fail(Code::deadline_exceeded,
                         "the sandbox is still being started; look for it in the list");
  }
  co_return sandbox_answer(201, done->sandbox);
}

async::Task<Reply> E2b::list(Call& call, bool paged) {
  auto const known =
      paged ? call.allow_query(
                  {"metadata", "state", "limit", "nextToken", "order", "startedAfter", "template"})
            : call.allow_query({"metadata"});
  if (!known) co_return std::unexpected(known.error());
  auto filter = filter_of(call);
  if (!filter) co_return base::passing(filter);
  if (!paged) filter->states = states_shown_as("running");
  bool const oldest_first = filter->oldest_first;
  auto const limit = filter->limit;
  filter->limit = limit + 1;  // one more tells whether there is another page
  auto rows = co_await store_.sandboxes.list(std::move(*filter), call.deadline);
  if (!rows) co_return base::passing(rows);
  bool const more = rows->size() > limit;
  if (more) rows->resize(limit);
  json::array array;
  for (auto const& row : *rows)
    array.push_back(listed_reply(row));
  auto reply = json_reply(200, array);
  if (!paged) co_return reply;
  if (more)
    reply.headers.add("X-Next-Token",
                      cursor_text({rows->back().created_at, rows->back().public_id}, oldest_first));
  auto const running =
      co_await store_.sandboxes.count_running(call.owner.project_id, call.deadline);
  if (running) reply.headers.add("X-Total-Running", std::to_string(*running));
  co_return reply;
}

async::Task<Reply> E2b::show(Call& call) {
  auto row = co_await visible(call);
  if (!row) co_return base::passing(row);
  co_return json_reply(200, detail_reply(*row, service_.access_token(*row), options_.domain));
}

async::Task<Reply> E2b::remove(Call& call) {
  auto const& asked = call.param("id");
  auto const id = std::string(domain::sandbox_id_in(asked));
  if (id.empty()) co_return no_such_sandbox(asked);
  auto row =
      co_await service_.get(call.owner.project_id, id, SandboxService::Ended::hide, call.deadline);
  if (!row && row.error().code() != Code::not_found) co_return base::passing(row);
  // One that is going already is gone for E2B clients: a second kill says False.
  if (!row || row->state == SandboxState::deleting) co_return no_such_sandbox(asked);
  auto started = co_await service_.remove(asker_of(call), id, call.deadline);
  if (!started && started.error().code() == Code::not_found) co_return no_such_sandbox(asked);
  if (!started) co_return base::passing(started);
  // From here on it is gone for everybody; the wait only lets its resources be free when we answer.
  auto const until = base::system_clock().in(options_.delete_wait);
  auto const operation =
      co_await service_.wait(call.owner.project_id, started->operation.public_id, until);
  if (!operation) co_return std::unexpected(operation.error());
  co_return empty_reply(204);
}

async::Task<Reply> E2b::set_timeout(Call& call) {
  auto const body = decode_body<SetTimeout>(call);
  if (!body) co_return std::unexpected(body.error());
  auto const timeout = domain::check_new_timeout(body->timeout, {.longest = options_.timeout_max});
  if (!timeout) co_return std::unexpected(timeout.error());
  auto row = co_await visible(call);
  if (!row) co_return base::passing(row);
  if (row->state != SandboxState::running) co_return no_such_sandbox(row->public_id);
  auto set = co_await service_.set_timeout(asker_of(call),
                                           row->public_id,
                                           static_cast<std::uint32_t>(timeout->count()),
                                           false,
                                           call.deadline);
  if (!set && (set.error().code() == Code::conflict || set.error().code() == Code::not_found)) {
    co_return no_such_sandbox(row->public_id);
  }
  if (!set) co_return base::passing(set);
  co_return empty_reply(204);
}

async::Task<Reply> E2b::refresh(Call& call) {
  auto const body = decode_body<Refresh>(call);
  if (!body) co_return std::unexpected(body.error());
  auto const asked = body->duration.value_or(refresh_least_s);
  if (asked < 0 || asked > refresh_most_s) {
    co_return base::fail(Code::invalid_argument,
                         fmt::format("duration: 0 to {} seconds", refresh_most_s));
  }
  auto row = co_await visible(call);
  if (!row) co_return base::passing(row);
  auto const seconds = static_cast<std::uint32_t>(std::max(asked, refresh_least_s));
  auto set =
      co_await service_.set_timeout(asker_of(call), row->public_id, seconds, true, call.deadline);
  if (!set) co_return base::passing(set);
  co_return empty_reply(204);
}

async::Task<Reply> E2b::connect(Call& call) {
  auto const body = decode_body<Connect>(call);
  if (!body) co_return std::unexpected(body.error());
  auto const timeout = domain::check_timeout(body->timeout.value_or(connect_default_s),
                                             {.longest = options_.timeout_max});
  if (!timeout) co_return std::unexpected(timeout.error());
  auto const& asked = call.param("id");
  auto const id = std::string(domain::sandbox_id_in(asked));
  if (id.empty()) co_return no_such_sandbox(asked);
  auto row =
      co_await service_.get(call.owner.project_id, id, SandboxService::Ended::hide, call.deadline);
  if (!row && row.error().code() == Code::not_found) co_return no_such_sandbox(asked);
  if (!row) co_return base::passing(row);
  if (row->state == SandboxState::deleting)
    co_return base::fail(Code::conflict, fmt::format("Sandbox \"{}\" is being killed", id));
  if (!shown_state(row->state)) co_return no_such_sandbox(asked);
  if (row->state != SandboxState::running) {
    auto reply = co_await awake(call, id, static_cast<std::uint32_t>(timeout->count()));
    co_return reply;
  }
  auto set = co_await service_.set_timeout(
      asker_of(call), id, static_cast<std::uint32_t>(timeout->count()), true, call.deadline);
  if (!set && set.error().code() == Code::not_found) co_return no_such_sandbox(asked);
  if (!set) co_return base::passing(set);
  co_return sandbox_answer(200, *set);
}

}  // namespace controlplane::e2b
