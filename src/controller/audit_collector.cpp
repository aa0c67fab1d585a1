#include "controller/audit_collector.hpp"

#include "audit/checkpoint.hpp"
#include "base/log.hpp"

namespace controller {
namespace {

using namespace std::chrono_literals;

constexpr auto database_time = 3s;
constexpr auto worker_time = 5s;
constexpr std::size_t told_max = 1'000;

base::Deadline in(std::chrono::milliseconds duration) {
  return base::system_clock().in(duration);
}

}  // namespace

store::asio::awaitable<void> AuditCollector::run() {
  while (true) {
    auto const done = co_await collect();
    if (!done)
      base::log::debug("audit_not_collected", {{"node", name_}, {"why", done.error().message()}});
    co_await async::sleep_for(every_);
  }
}

async::Task<void> AuditCollector::collect() {
  auto known = co_await checkpoints_.find(name_, in(database_time));
  if (!known) co_return base::passing(known);
  auto const after = known->latest ? known->latest->last_sequence : 0;
  auto told = co_await link_.audit_checkpoints(after, in(worker_time));
  if (!told) co_return base::passing(told);
  if (!audit::is_public_key(told->public_key) || told->checkpoints.size() > told_max)
    co_return base::fail(base::Code::unavailable, "the worker's checkpoints make no sense");
  if (known->public_key.empty()) {
    auto enrolled = co_await checkpoints_.enroll(name_, told->public_key, in(database_time));
    if (!enrolled) co_return base::passing(enrolled);
    base::log::info("audit_key_enrolled", {{"node", name_}, {"key", told->public_key}});
    // Another controller may have been first; only the key, as the worker answered what was known.
    auto now = co_await checkpoints_.find(name_, in(database_time));
    if (!now) co_return base::passing(now);
    known->public_key = now->public_key;
  }
  auto judged = audit::judge(name_, {known->public_key, known->latest}, *told);
  if (!judged.good.empty()) {
    auto added = co_await checkpoints_.add(name_, std::move(judged.good), in(database_time));
    if (!added) co_return base::passing(added);
  }
  if (judged.problem.empty()) co_return base::Result<void>();
  auto first = co_await checkpoints_.complain(name_, judged.problem, in(database_time));
  if (!first) co_return base::passing(first);
  if (*first) base::log::error("audit_broken", {{"node", name_}, {"what", judged.problem}});
  co_return base::Result<void>();
}

}  // namespace controller
