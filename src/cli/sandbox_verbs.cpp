#include "cli/policy_verbs.hpp"
#include "cli/verbs.hpp"

namespace cli {
namespace {

using namespace std::chrono_literals;

constexpr int wait_seconds = 300;

std::string_view next_step_for(base::Code code) {
  switch (code) {
    case base::Code::not_found:
      return "See what there is: space sandbox list";
    case base::Code::exhausted:
      return "End what is not needed: space sandbox list; space sandbox rm ID";
    case base::Code::unauthenticated:
      return "Set a key: export SPACE_API_KEY=…   or make one: space key create --name me";
    case base::Code::unavailable:
      return "What is wrong: space doctor";
    default:
      return {};
  }
}

base::Result<json::object> body_of(CreateOptions const& options) {
  json::object body;
  if (!options.template_name.empty()) body["template"] = options.template_name;
  if (options.vcpus) body["vcpus"] = *options.vcpus;
  for (auto const& [key, text] :
       {std::pair("memory_mib", &options.memory), std::pair("disk_mib", &options.disk)}) {
    if (text->empty()) continue;
    auto mib = parse_mib(*text);
    if (!mib) return base::passing(mib);
    body[key] = *mib;
  }
  if (options.timeout == "none") {
    body["timeout_s"] = nullptr;
  } else if (!options.timeout.empty()) {
    auto seconds = parse_duration(options.timeout);
    if (!seconds) return base::passing(seconds);
    body["timeout_s"] = *seconds;
  }
  if (!options.on_timeout.empty()) body["on_timeout"] = options.on_timeout;
  if (!options.snapshot.empty()) body["snapshot"] = options.snapshot;
  if (options.idle_timeout == "none") {
    body["idle_timeout_s"] = 0;
  } else if (!options.idle_timeout.empty()) {
    auto seconds = parse_duration(options.idle_timeout);
    if (!seconds) return base::passing(seconds);
    body["idle_timeout_s"] = *seconds;
  }
  if (options.insecure) body["secure"] = false;
  auto policy = policy_of(options.allow, options.policy_file);
  if (!policy) return base::passing(policy);
  if (*policy) body["policy"] = std::move(**policy);
  for (auto const& [key, pairs] :
       {std::pair("env", &options.env), std::pair("metadata", &options.metadata)}) {
    if (pairs->empty()) continue;
    auto object = parse_pairs(*pairs, key);
    if (!object) return base::passing(object);
    body[key] = std::move(*object);
  }
  return body;
}

std::string amounts_of(json::value const& sandbox) {
  return fmt::format("{} vCPU, {} MiB memory, {} MiB disk",
                     number_of(sandbox, "vcpus"),
                     number_of(sandbox, "memory_mib"),
                     number_of(sandbox, "disk_mib"));
}

}  // namespace

base::Result<json::object> parse_pairs(std::vector<std::string> const& pairs,
                                       std::string_view what) {
  json::object object;
  for (auto const& pair : pairs) {
    auto const equals = pair.find('=');
    if (equals == std::string::npos || equals == 0) {
      return base::fail(base::Code::invalid_argument,
                        fmt::format("{}: \"{}\" is not NAME=VALUE", what, pair));
    }
    object[pair.substr(0, equals)] = pair.substr(equals + 1);
  }
  return object;
}

asio::awaitable<int> sandbox_create(Session session, CreateOptions options) {
  auto body = body_of(options);
  if (!body)
    co_return session.out.fail(body.error(), "How it is used: space sandbox create --help");
  auto target =
      fmt::format("/v1/sandboxes{}", options.no_wait ? "" : fmt::format("?wait={}", wait_seconds));
  auto made =
      co_await session.api.call("POST",
                                std::move(target),
                                std::move(*body),
                                base::system_clock().in(std::chrono::seconds(wait_seconds + 30)));
  if (!made) {
    auto const code = made.error().code();
    co_return session.out.fail(made.error(),
                               code != base::Code::not_found ? next_step_for(code)
                               : options.snapshot.empty()
                                   ? "See what there is: space template list"
                                   : "See what there is: space snapshot list");
  }
  auto const& sandbox = member_of(*made, "sandbox");
  if (session.out.as_json())
    session.out.document(*made);
  else
    session.out.line(text_of(sandbox, "id"));
  auto const state = text_of(sandbox, "state");
  if (state == "creating" && !options.no_wait) {
    session.out.note(
        fmt::format("It is still starting. Wait for it: space operation show {} --wait 60s",
                    text_of(member_of(*made, "operation"), "id")));
    co_return base::exit_code_of(base::Code::deadline_exceeded);
  }
  co_return 0;
}

asio::awaitable<int> sandbox_list(Session session, ListOptions options) {
  std::string target = "/v1/sandboxes?limit=100";
  if (!options.state.empty()) target += "&state=" + http::percent_encode(options.state);
  if (!options.template_name.empty())
    target += "&template=" + http::percent_encode(options.template_name);
  for (auto const& pair : options.metadata)
    target += "&metadata=" + http::percent_encode(pair);
  auto all = co_await list_all(session, std::move(target), "sandboxes");
  if (!all) co_return session.out.fail(all.error(), next_step_for(all.error().code()));
  if (session.out.as_json()) {
    session.out.document(json::object{{"sandboxes", std::move(*all)}});
    co_return 0;
  }
  std::vector<std::vector<std::string>> rows;
  auto const now = seconds_now();
  for (auto const& one : *all) {
    if (options.ids_only) {
      session.out.line(text_of(one, "id"));
      continue;
    }
    auto const ended = text_of(one, "end_reason");
    auto const deadline = text_of(one, "deadline_at");
    rows.push_back({text_of(one, "id"),
                    text_of(one, "state"),
                    text_of(one, "template"),
                    fmt::format("{}", number_of(one, "vcpus")),
                    fmt::format("{}", number_of(one, "memory_mib")),
                    age_of(text_of(one, "created_at"), now),
                    !ended.empty()      ? ended
                    : !deadline.empty() ? age_of(deadline, now)
                    // Its time counts from when it runs.
                    : number_of(one, "timeout_s") > 0
                        ? fmt::format("{} s after it runs", number_of(one, "timeout_s"))
                        : "no timeout"});
  }
  if (!options.ids_only)
    session.out.table({"ID", "STATE", "TEMPLATE", "VCPUS", "MEMORY_MIB", "CREATED", "ENDS"}, rows);
  co_return 0;
}

asio::awaitable<int> sandbox_show(Session session, std::string id) {
  auto sandbox = co_await session.api.call(
      "GET", path_of("sandboxes", id, "?timeline=1"), nullptr, in_a_minute());
  if (!sandbox) co_return session.out.fail(sandbox.error(), next_step_for(sandbox.error().code()));
  if (session.out.as_json()) {
    session.out.document(*sandbox);
    co_return 0;
  }
  std::vector<std::vector<std::string>> rows;
  auto const add = [&](std::string name, std::string value) {
    if (!value.empty()) rows.push_back({std::move(name), std::move(value)});
  };
  add("id", text_of(*sandbox, "id"));
  add("state", text_of(*sandbox, "state"));
  add("template",
      fmt::format("{} ({})", text_of(*sandbox, "template"), text_of(*sandbox, "build")));
  add("size", amounts_of(*sandbox));
  add("node", text_of(*sandbox, "node"));
  add("created", text_of(*sandbox, "created_at"));
  add("timeout", text_of(*sandbox, "deadline_at"));
  add("suspended", text_of(*sandbox, "suspended_at"));
  if (auto const bytes = number_of(*sandbox, "suspended_bytes"); bytes > 0)
    add("on disk", fmt::format("{} MiB", bytes >> 20));
  add("problem", text_of(*sandbox, "problem"));
  add("forked from", text_of(*sandbox, "parent"));
  add("snapshot", text_of(*sandbox, "snapshot"));
  add("address", fmt::format("PORT-{}.{}", text_of(*sandbox, "id"), text_of(*sandbox, "domain")));
  auto const& metadata = member_of(*sandbox, "metadata");
  if (auto const* pairs = metadata.if_object()) {
    for (auto const& pair : *pairs)
      add("metadata",
          fmt::format("{}={}", std::string_view(pair.key()), text_of(metadata, pair.key())));
  }
  add("ended", text_of(*sandbox, "ended_at"));
  add("why",
      fmt::format("{} {}", text_of(*sandbox, "end_reason"), text_of(*sandbox, "end_detail"))
          .substr(text_of(*sandbox, "end_reason").empty() ? 1 : 0));
  if (auto const* steps = member_of(*sandbox, "timeline").if_array()) {
    for (auto const& step : *steps) {
      auto const by = text_of(step, "by");
      add("start",
          fmt::format("{:>10.1f} ms  {}{}",
                      decimal_of(step, "at_ms"),
                      text_of(step, "step"),
                      by.empty() ? "" : ", by " + by));
    }
  }
  session.out.table({"FIELD", "VALUE"}, rows);
  if (auto const console = text_of(*sandbox, "console_tail"); !console.empty())
    session.out.note("Its console is at: space sandbox console " + id);
  co_return 0;
}

asio::awaitable<int> sandbox_remove(Session session, std::vector<std::string> ids, bool no_wait) {
  int worst = 0;
  for (auto const& id : ids) {
    auto done = co_await session.api.call("DELETE",
                                          path_of("sandboxes", id, no_wait ? "" : "?wait=60"),
                                          nullptr,
                                          base::system_clock().in(90s));
    if (!done) {
      worst = session.out.fail(done.error(), next_step_for(done.error().code()));
      continue;
    }
    if (session.out.as_json())
      session.out.document(*done);
    else
      session.out.line(id);
  }
  co_return worst;
}

asio::awaitable<int> sandbox_timeout(Session session, std::string id, std::string timeout) {
  json::object body{{"timeout_s", nullptr}};
  if (timeout != "none") {
    auto seconds = parse_duration(timeout);
    if (!seconds) co_return session.out.fail(seconds.error());
    body["timeout_s"] = *seconds;
  }
  auto sandbox =
      co_await session.api.call("PATCH", path_of("sandboxes", id), std::move(body), in_a_minute());
  if (!sandbox) co_return session.out.fail(sandbox.error(), next_step_for(sandbox.error().code()));
  auto const deadline = text_of(*sandbox, "deadline_at");
  if (session.out.as_json())
    session.out.document(*sandbox);
  else
    session.out.line(deadline.empty() ? "no timeout" : deadline);
  co_return 0;
}

asio::awaitable<int> sandbox_console(Session session, std::string id) {
  auto text =
      co_await session.api.download(path_of("sandboxes", id, "/console"), in_a_minute(), 1U << 20);
  if (text) {
    session.out.raw(*text);
    co_return 0;
  }
  if (text.error().code() != base::Code::conflict)
    co_return session.out.fail(text.error(), next_step_for(text.error().code()));
  // Of one that has ended, the row keeps the last lines.
  auto sandbox = co_await session.api.call("GET", path_of("sandboxes", id), nullptr, in_a_minute());
  if (!sandbox) co_return session.out.fail(sandbox.error());
  session.out.line(text_of(*sandbox, "console_tail"));
  co_return 0;
}

}  // namespace cli
