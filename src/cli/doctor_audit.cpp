#include "cli/doctor_audit.hpp"

#include "cli/client.hpp"

namespace cli {
using namespace std::chrono_literals;

std::optional<Finding> judge_audit(json::value const& answer, std::string const& node) {
  auto const problem = text_of(answer, "problem");
  if (!problem.empty()) {
    return Finding{
        "audit",
        Health::degraded,
        fmt::format("{} (noticed {})", problem, text_of(answer, "problem_at")),
        "somebody changed this host's audit log, or its key, or took its worker's directory away",
        fmt::format("space audit verify; when you know why: space audit accept {}", node)};
  }
  if (text_of(answer, "public_key").empty()) return std::nullopt;
  return Finding{"audit", Health::ok, "its signed checkpoints go on from each other"};
}

std::optional<Finding> probe_audit(wire::Config const& config) {
  auto target = find_target("", "");
  if (!target) return std::nullopt;
  std::optional<Finding> out;
  auto main = [&]() -> asio::awaitable<int> {
    Api api(co_await asio::this_coro::executor, std::move(*target));
    auto answer = co_await api.call("GET",
                                    path_of("nodes", config.node_name, "/audit/checkpoints"),
                                    nullptr,
                                    base::system_clock().in(5s));
    if (answer) out = judge_audit(*answer, config.node_name);
    co_return 0;
  };
  (void)async::run_main(main);
  return out;
}

}  // namespace cli
