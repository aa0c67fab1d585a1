// E2B's pause is our suspend; connect and resume wake; snapshots and forks.
#include "base/id.hpp"
#include "controlplane/e2b_routes.hpp"
#include "domain/template_name.hpp"
#include "domain/timeouts.hpp"

#include <charconv>

namespace controlplane::e2b {
namespace {

using base::Code;
using domain::SandboxState;

constexpr std::int64_t resume_default_s = 15;
constexpr std::uint32_t page_max = 100;

}  // namespace

void E2b::add_lives_routes(Router& router) {
  auto const add = [&](std::string method, std::string pattern, Repeat repeat, Handler handler) {
    add_route(router, std::move(method), std::move(pattern), std::move(handler), repeat);
  };
  using enum Repeat;
  // A pause or a resume may be repeated as it is: the second finds it done.
  add("POST", "/sandboxes/{id}/pause", handler, [this](Call& call) { return pause(call); });
  add("POST", "/sandboxes/{id}/resume", handler, [this](Call& call) { return resume(call); });
  add("POST", "/sandboxes/{id}/snapshots", handler, [this](Call& call) {
    return take_snapshot(call);
  });
  add("POST", "/sandboxes/{id}/fork", replay, [this](Call& call) { return fork(call); });
  add("GET", "/snapshots", none, [this](Call& call) { return list_snapshots(call); });
  add("DELETE", "/templates/{id*}", none, [this](Call& call) { return remove_template(call); });
}

async::Task<Reply> E2b::pause(Call& call) {
  auto const body = decode_body<Pause>(call);
  if (!body) co_return std::unexpected(body.error());
  auto row = co_await visible(call);
  if (!row) co_return base::passing(row);
  if (!body->memory.value_or(true)) {
    co_return error_reply(501,
                          "memory false is not available in this version: a pause keeps memory and "
                          "disk");
  }
  auto const id = row->public_id;
  auto const until = base::system_clock().in(options_.pause_wait);
  // One that is on its way back is let come back first.
  if (row->state == SandboxState::restoring || row->state == SandboxState::resuming ||
      row->state == SandboxState::pausing) {
    auto woken = co_await service_.wake(asker_of(call), id, {}, until);
    if (!woken) co_return base::passing(woken);
  }
  auto const already = fmt::format("Sandbox \"{}\" is already paused", id);
  if (row->state == SandboxState::suspended) co_return error_reply(409, already);
  auto started = co_await service_.suspend(asker_of(call), id, call.deadline);
  if (!started && started.error().code() == Code::not_found) co_return no_such_sandbox(id);
  if (!started) co_return base::passing(started);
  auto done = co_await service_.wait(call.owner.project_id, started->operation.public_id, until);
  if (!done) co_return base::passing(done);
  if (done->state == "failed") {
    auto const code = base::code_named(done->error_code);
    auto const soon = base::system_clock().in(std::chrono::seconds(5));
    auto const now =
        co_await service_.get(call.owner.project_id, id, SandboxService::Ended::hide, soon);
    if (!now && now.error().code() == Code::not_found)
      co_return error_reply(
          404, fmt::format("Sandbox \"{}\" could not be paused: {}", id, done->error_message));
    // 409 would be "already paused" to clients.
    co_return base::fail(code == Code::conflict ? Code::unavailable : code,
                         "the sandbox could not be paused: " + done->error_message);
  }
  if (!done->done())
    co_return base::fail(Code::deadline_exceeded, "the sandbox is still being paused");
  co_return empty_reply(204);
}

/// Awake, with a timeout that counts from now on and never ends it earlier than it would have.
async::Task<Reply> E2b::awake(Call& call, std::string sandbox, std::uint32_t timeout_s) {
  auto woken = co_await service_.wake(
      asker_of(call), sandbox, timeout_s, base::system_clock().in(options_.pause_wait));
  if (!woken && woken.error().code() == Code::not_found) co_return no_such_sandbox(sandbox);
  if (!woken) co_return base::passing(woken);
  auto const soon = base::system_clock().in(std::chrono::seconds(10));
  auto set = co_await service_.set_timeout(asker_of(call), sandbox, timeout_s, true, soon);
  if (!set && set.error().code() == Code::not_found) co_return no_such_sandbox(sandbox);
  if (!set) co_return base::passing(set);
  co_return sandbox_answer(201, *set);
}

async::Task<Reply> E2b::resume(Call& call) {
  auto const body = decode_body<Connect>(call);
  if (!body) co_return std::unexpected(body.error());
  auto const timeout = domain::check_timeout(body->timeout.value_or(resume_default_s),
                                             {.longest = options_.timeout_max});
  if (!timeout) co_return std::unexpected(timeout.error());
  auto row = co_await visible(call);
  if (!row) co_return base::passing(row);
  if (row->state == SandboxState::running)
    co_return error_reply(409, fmt::format("Sandbox \"{}\" is already running", row->public_id));
  auto reply = co_await awake(call, row->public_id, static_cast<std::uint32_t>(timeout->count()));
  co_return reply;
}

async::Task<Reply> E2b::take_snapshot(Call& call) {
  auto body = decode_body<TakeSnapshot>(call);
  if (!body) co_return base::passing(body);
  auto row = co_await visible(call);
  if (!row) co_return base::passing(row);
  if (!body->memory.value_or(true)) {
    co_return error_reply(501,
                          "memory false is not available in this version: a snapshot keeps memory "
                          "and disk");
  }
  SnapshotSpec spec;
  if (body->name) {
    auto parsed = domain::parse_template_name(*body->name);
    if (!parsed) co_return base::passing(parsed, "name");
    spec.name = parsed->alias;
  }
  auto started = co_await service_.snapshot(asker_of(call), row->public_id, spec, call.deadline);
  if (!started) co_return base::passing(started);
  auto const until = base::system_clock().in(options_.pause_wait);
  auto done = co_await service_.wait(call.owner.project_id, started->operation.public_id, until);
  if (!done) co_return base::passing(done);
  if (done->state == "failed") {
    co_return base::fail(base::code_named(done->error_code),
                         "the snapshot could not be taken: " + done->error_message);
  }
  if (!done->done())
    co_return base::fail(Code::deadline_exceeded, "the snapshot is still being taken");
  co_return json_reply(201, snapshot_reply(started->snapshot));
}

async::Task<Reply> E2b::list_snapshots(Call& call) {
  auto const known = call.allow_query({"sandboxID", "limit", "nextToken", "name"});
  if (!known) co_return std::unexpected(known.error());
  auto const limit = query_number(call, "limit", 1, page_max);
  if (!limit) co_return std::unexpected(limit.error());
  store::SnapshotFilter filter;
  filter.project_id = call.owner.project_id;
  filter.source = std::string(domain::sandbox_id_in(call.query_value("sandboxID").value_or("")));
  if (filter.source.empty()) filter.source = call.query_value("sandboxID").value_or("");
  filter.name = call.query_value("name").value_or("");
  auto const page = static_cast<std::uint32_t>(limit->value_or(page_max));
  filter.limit = page + 1;  // one more tells whether there is another page
  if (auto const token = call.query_value("nextToken"); token && !token->empty()) {
    auto const dash = token->find('-');
    auto const after = dash == std::string::npos ? std::string() : token->substr(dash + 1);
    std::int64_t micros = 0;
    auto const [end, error] =
        std::from_chars(token->data(), token->data() + std::min(dash, token->size()), micros);
    if (error != std::errc() || !base::is_short_id('s', after))
      co_return base::fail(Code::invalid_argument,
                           "nextToken: expected the X-Next-Token of an earlier page of this list");
    filter.after_time = wall_time_of(std::chrono::microseconds(micros));
    filter.after_id = after;
  }
  auto rows = co_await store_.snapshots.list(std::move(filter), call.deadline);
  if (!rows) co_return base::passing(rows);
  bool const more = rows->size() > page;
  if (more) rows->resize(page);
  json::array array;
  for (auto const& row : *rows) {
    if (row.state == "ready") array.push_back(snapshot_reply(row));
  }
  auto reply = json_reply(200, array);
  if (more) {
    auto const micros = std::chrono::duration_cast<std::chrono::microseconds>(
        rows->back().created_at.time_since_epoch());
    reply.headers.add("X-Next-Token", fmt::format("{}-{}", micros.count(), rows->back().public_id));
  }
  co_return reply;
}

/// Clients delete snapshots as templates.
async::Task<Reply> E2b::remove_template(Call& call) {
  auto const& asked = call.param("id");
  auto const parsed = domain::parse_template_name(asked);
  if (parsed && base::is_short_id('s', parsed->alias) &&
      (parsed->name_space.empty() || parsed->name_space == call.owner.project_public_id)) {
    auto removed = co_await service_.remove_snapshot(asker_of(call), parsed->alias, call.deadline);
    if (removed) co_return empty_reply(204);
    if (removed.error().code() != Code::not_found) co_return base::passing(removed);
  }
  auto reply = co_await template_later(
      call, "deleting templates is not available in this version; see `space template`");
  co_return reply;
}

async::Task<Reply> E2b::fork(Call& call) {
  auto const body = decode_body<Fork>(call);
  if (!body) co_return std::unexpected(body.error());
  auto const timeout = domain::check_timeout(body->timeout.value_or(resume_default_s),
                                             {.longest = options_.timeout_max});
  if (!timeout) co_return std::unexpected(timeout.error());
  auto const count = body->count.value_or(1);
  if (count < 1 || count > 100)
    co_return base::fail(Code::invalid_argument, "count: expected 1 to 100");
  auto row = co_await visible(call);
  if (!row) co_return base::passing(row);
  auto copies = co_await service_.fork(asker_of(call),
                                       row->public_id,
                                       static_cast<std::uint32_t>(count),
                                       static_cast<std::uint32_t>(timeout->count()),
                                       base::system_clock().in(options_.create_wait));
  if (!copies) co_return base::passing(copies);
  json::array array;
  for (auto const& copy : *copies) {
    if (copy) {
      array.push_back(json::object{{"sandbox",
                                    sandbox_reply(copy->sandbox,
                                                  service_.access_token(copy->sandbox),
                                                  service_.traffic_token(copy->sandbox),
                                                  options_.domain)}});
      continue;
    }
    array.push_back(json::object{{"error",
                                  json::object{{"code", base::http_status_of(copy.error().code())},
                                               {"message", copy.error().message()}}}});
  }
  co_return json_reply(201, array);
}

}  // namespace controlplane::e2b
