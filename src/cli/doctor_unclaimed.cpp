// What is at rest on this host and its database has never heard of.

#include "cli/api.hpp"
#include "cli/doctor.hpp"
#include "cli/installation.hpp"

#include <boost/asio/this_coro.hpp>

namespace cli {
namespace {

using namespace std::chrono_literals;

constexpr char name[] = "at rest";
constexpr std::size_t named_max = 3;

async::Task<json::value> list_nodes(Target target) {
  Api api(co_await asio::this_coro::executor, std::move(target));
  co_return co_await api.call("GET", "/v1/nodes", {}, base::system_clock().in(5s));
}

std::string named(json::array const& ids, std::int64_t total) {
  std::string text;
  for (std::size_t i = 0; i < std::min(ids.size(), named_max); ++i) {
    auto const* id = ids[i].if_string();
    if (id != nullptr) text += (text.empty() ? "" : ", ") + std::string(*id);
  }
  if (total > static_cast<std::int64_t>(named_max)) text += ", …";
  return text;
}

}  // namespace

Finding judge_unclaimed(json::value const& nodes, std::string const& node, std::string const& dir) {
  Finding finding{.what = name, .proof = "the database knows all that sleeps here"};
  auto const* list = nodes.is_object() ? nodes.get_object().if_contains("nodes") : nullptr;
  if (list == nullptr || !list->is_array()) return finding;
  for (auto const& one : list->get_array()) {
    auto const* object = one.if_object();
    auto const* called = object != nullptr ? object->if_contains("name") : nullptr;
    auto const* total = object != nullptr ? object->if_contains("unclaimed_total") : nullptr;
    auto const* ids = object != nullptr ? object->if_contains("unclaimed") : nullptr;
    bool const ours = called != nullptr && called->is_string() && called->get_string() == node;
    if (!ours || total == nullptr || !total->is_int64() || ids == nullptr || !ids->is_array())
      continue;
    finding.health = Health::degraded;
    finding.proof = fmt::format("the database has never heard of {} at rest here ({})",
                                total->get_int64(),
                                named(ids->get_array(), total->get_int64()));
    finding.follows =
        "it is not the database that they were made with, or an older copy of it; they are kept, "
        "and nobody can resume them";
    finding.fix = fmt::format(
        "start with the right database; or let them go for good: touch "
        "{}/worker/release-unclaimed",
        dir);
  }
  return finding;
}

Finding probe_unclaimed(wire::Config const& config) {
  auto target = find_target(http_address(config), admin_key_path(config));
  auto nodes = base::Result<json::value>(base::fail(base::Code::unavailable, "not asked"));
  if (!target) {
    nodes = base::passing(target);
  } else {
    auto main = [&]() -> asio::awaitable<int> {
      nodes = co_await list_nodes(std::move(*target));
      co_return 0;
    };
    (void)async::run_main(main);
  }
  if (!nodes)
    return {.what = name, .proof = "the platform cannot be asked: " + nodes.error().message()};
  return judge_unclaimed(*nodes, config.node_name, config.data_dir);
}

}  // namespace cli
