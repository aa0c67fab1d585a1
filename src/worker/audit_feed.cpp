#include "worker/audit_feed.hpp"

#include "base/log.hpp"

#include <sys/stat.h>

#include <cerrno>

namespace worker {

namespace asio = boost::asio;

namespace {

constexpr std::size_t waiting_max = 65'536;
constexpr std::size_t sandbox_waiting_max = 4'096;
/// … when all together have half of what breaks the feed.
constexpr std::size_t sandbox_waiting_least = 64;
constexpr std::chrono::seconds room_patience(30);
constexpr std::size_t latest_max = 4'096;
constexpr std::chrono::milliseconds write_every(1'000);
constexpr std::chrono::minutes retire_every(10);

/// The log is what must not fail; the next checkpoint says all that this one would have.
void note(audit::Checkpoints& checkpoints, audit::Log const& log, bool now) {
  auto const noted = checkpoints.note(log, now);
  if (!noted)
    base::log::warn("no_checkpoint",
                    {{"what", noted.error().message()}, {"detail", noted.error().detail()}});
}

}  // namespace

std::int64_t micros_of(base::WallTime time) {
  return std::chrono::duration_cast<std::chrono::microseconds>(time.time_since_epoch()).count();
}

AuditFeed::AuditFeed(asio::any_io_executor executor, std::string directory)
    : directory_(std::move(directory)), changed_(executor), broke_(std::move(executor)) {}

async::Task<void> AuditFeed::open(std::string node, std::string key_path) {
  struct Opened {
    std::unique_ptr<audit::Log> log;
    std::shared_ptr<audit::Checkpoints> checkpoints;
  };

  auto opened =
      co_await async::blocking([directory = directory_, node, key_path]() -> base::Result<Opened> {
        if (::mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST)
          return base::fail_errno("make the audit log's directory", directory);
        auto log = audit::Log::open(directory);
        if (!log) return base::passing(log);
        Opened out{std::move(*log), nullptr};
        if (node.empty()) return out;
        auto checkpoints = audit::Checkpoints::open(node, key_path, directory);
        if (!checkpoints) return base::passing(checkpoints);
        (*checkpoints)->attend(*out.log);
        note(**checkpoints, *out.log, true);
        out.checkpoints = std::move(*checkpoints);
        return out;
      });
  if (!opened) co_return base::passing(opened, "open the audit log");
  log_ = std::move(opened->log);
  checkpoints_ = std::move(opened->checkpoints);
  co_return base::Result<void>();
}

async::Task<wire::AuditCheckpoints> AuditFeed::checkpoints(std::uint64_t after) const {
  if (!checkpoints_)
    co_return base::fail(base::Code::unavailable, "this log has no signed checkpoints");
  co_return co_await async::blocking(
      [checkpoints = checkpoints_, after] { return checkpoints->tell(after); });
}

void AuditFeed::add(std::string const& sandbox, std::string record) {
  latest_.push_back({++last_, sandbox, record});
  if (latest_.size() > latest_max) latest_.pop_front();
  if (waiting_.size() >= waiting_max) {
    broken_ = true;  // the disk has not taken anything for long
    broke_.notify_all();
  } else {
    waiting_.push_back(std::move(record));
    ++waiting_of_[sandbox];
  }
  changed_.notify_all();
}

bool AuditFeed::crowded(std::string const& sandbox) const {
  auto const found = waiting_of_.find(sandbox);
  if (found == waiting_of_.end()) return false;
  bool const many = waiting_.size() >= waiting_max / 2;
  return found->second >= (many ? sandbox_waiting_least : sandbox_waiting_max);
}

asio::awaitable<void> AuditFeed::wait_while_crowded(std::string const* sandbox) {
  while (crowded(*sandbox))
    co_await changed_.wait();
}

asio::awaitable<bool> AuditFeed::wait_room(std::string sandbox) {
  auto const ended = co_await async::run_until(base::system_clock().in(room_patience),
                                               wait_while_crowded(&sandbox));
  co_return ended == async::Ended::finished;
}

async::Task<audit::Page> AuditFeed::page(audit::Query query) const {
  co_return co_await async::blocking([directory = directory_, query = std::move(query)] {
    return audit::read_page(directory, query);
  });
}

asio::awaitable<void> AuditFeed::run() {
  for (;;) {
    while (waiting_.empty())
      co_await changed_.wait();
    co_await write_out();
    co_await async::sleep_for(write_every);
  }
}

asio::awaitable<void> AuditFeed::write_out(bool last) {
  if (!log_ || (waiting_.empty() && !last)) co_return;
  auto batch = std::make_shared<std::deque<std::string>>(std::exchange(waiting_, {}));
  waiting_of_.clear();
  changed_.notify_all();
  auto const written = co_await async::blocking(
      [log = log_, checkpoints = checkpoints_, batch, last]() -> base::Result<void> {
        for (auto const& record : *batch) {
          auto appended = log->append(record);
          if (!appended) return appended;
        }
        auto synced = log->sync();
        if (synced && checkpoints) note(*checkpoints, *log, last);
        return synced;
      });
  co_await retire_sometimes();
  if (written) co_return;
  base::log::error("audit_broken",
                   {{"what", written.error().message()}, {"detail", written.error().detail()}});
  broken_ = true;
  broke_.notify_all();
  changed_.notify_all();
}

/// Files go by themselves when new ones are begun; this is for those that get too old meanwhile.
asio::awaitable<void> AuditFeed::retire_sometimes() {
  auto const now = base::system_clock().steady_now();
  if (now < retire_at_) co_return;
  retire_at_ = now + retire_every;
  auto const retired = co_await async::blocking([log = log_] { return log->retire(); });
  if (!retired)  // too much is kept, and nothing lost
    base::log::warn("audit_not_retired", {{"what", retired.error().message()}});
}

asio::awaitable<void> AuditFeed::wait_broken() {
  while (!broken_)
    co_await broke_.wait();
}

asio::awaitable<void> AuditFeed::close() {
  co_await write_out(true);
}

std::vector<AuditFeed::Numbered> AuditFeed::after(std::uint64_t number,
                                                  std::string const& sandbox) const {
  std::vector<Numbered> out;
  for (auto const& one : latest_)
    if (one.number > number && one.sandbox == sandbox) out.push_back(one);
  return out;
}

}  // namespace worker
