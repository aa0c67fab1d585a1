// What the control plane keeps of the hosts' audit logs.
#include "controlplane/native.hpp"
#include "store/audit_checkpoints.hpp"

#include <charconv>

namespace controlplane {
namespace {

constexpr std::uint32_t page_max = 1'000;

base::Result<std::uint64_t> after_of(Call const& call) {
  auto const text = call.query_value("after").value_or("0");
  std::uint64_t out = 0;
  auto const [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  // Signed 64 bits in the database.
  bool const good = error == std::errc() && end == text.data() + text.size() &&
                    out <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  if (!good)
    return base::fail(base::Code::invalid_argument, "after: expected the number of a record");
  return out;
}

std::unexpected<base::Error> no_such_node(std::string const& name) {
  return base::fail(base::Code::not_found, fmt::format("there is no node \"{}\"", name));
}

}  // namespace

async::Task<Reply> Native::list_checkpoints(Call& call) {
  if (auto ok = call.allow_query({"after"}); !ok) co_return base::passing(ok);
  auto const after = after_of(call);
  if (!after) co_return std::unexpected(after.error());
  auto const& name = call.param("node");
  store::AuditCheckpoints checkpoints(store_.database);
  auto node = co_await checkpoints.find(name, call.deadline);
  if (!node) co_return base::passing(node);
  if (!node->known) co_return no_such_node(name);
  auto rows = co_await checkpoints.list(name, *after, page_max + 1, call.deadline);
  if (!rows) co_return base::passing(rows);
  bool const more = rows->size() > page_max;
  if (more) rows->resize(page_max);
  json::array array;
  for (auto const& row : *rows)
    array.push_back(json::object{{"first_sequence", row.first_sequence},
                                 {"last_sequence", row.last_sequence},
                                 {"hash", row.hash},
                                 {"made_at_us", row.made_at_us},
                                 {"signature", row.signature}});
  json::object out{{"node", name},
                   {"public_key", node->public_key},
                   {"problem", node->problem},
                   {"checkpoints", std::move(array)},
                   {"more", more}};
  if (node->problem_at) out["problem_at"] = base::to_rfc3339(*node->problem_at);
  co_return json_reply(200, out);
}

async::Task<Reply> Native::accept_audit(Call& call) {
  if (auto ok = call.allow_query({}); !ok) co_return base::passing(ok);
  auto const& name = call.param("node");
  store::AuditCheckpoints checkpoints(store_.database);
  auto node = co_await checkpoints.find(name, call.deadline);
  if (!node) co_return base::passing(node);
  if (!node->known) co_return no_such_node(name);
  auto done = co_await checkpoints.forget(name, call.owner.key_public_id, call.deadline);
  if (!done) co_return base::passing(done);
  hub_.poke();
  co_return empty_reply(204);
}

}  // namespace controlplane
