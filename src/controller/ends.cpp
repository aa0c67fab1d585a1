#include "controller/ends.hpp"

#include "base/fault.hpp"
#include "base/id.hpp"
#include "base/log.hpp"
#include "controller/backoff.hpp"

namespace controller {
namespace {

using namespace std::chrono_literals;
using domain::EndReason;
using domain::SandboxEvent;
using domain::SandboxState;

constexpr std::size_t detail_bytes_max = 1000;
constexpr std::size_t console_bytes_max = std::size_t{16} * 1024;

/// The database keeps text without NUL and in UTF-8; a console holds anything. The end of it
/// counts.
std::string printable_tail(std::string_view text, std::size_t most) {
  text = text.substr(text.size() > most ? text.size() - most : 0);
  std::string out;
  out.reserve(text.size());
  for (char const c : text)
    out += (c == '\n' || c == '\t' || (c >= ' ' && c < 0x7f)) ? c : '?';
  return out;
}

}  // namespace

std::optional<store::End> end_for(store::SandboxRow const& row, wire::EndedSandbox const& ended) {
  if (row.epoch != ended.epoch || domain::is_terminal(row.state)) return std::nullopt;
  auto reason = domain::reason_of_cause(ended.cause);
  store::End end;
  end.id = row.id;
  end.epoch = row.epoch;
  end.actor = "worker";
  end.detail = printable_tail(ended.detail, detail_bytes_max);
  end.console_tail = printable_tail(ended.console_tail, console_bytes_max);
  if (row.state == SandboxState::deleting) {
    end.event = SandboxEvent::released;
    end.reason = reason;
    return end;
  }
  if (row.state == SandboxState::creating &&
      (reason == EndReason::start_failed || reason == EndReason::user)) {
    return std::nullopt;  // whoever creates it got the same answer and may try another worker
  }
  if (reason == EndReason::user || reason == EndReason::start_failed) {
    // Nobody who has a row asked for that.
    reason = EndReason::unknown;
    end.detail = "the worker removed it without being asked by its row: " + end.detail;
  }
  end.reason = reason;
  end.event = domain::event_of(reason);
  if (!domain::find_transition(row.state, end.event)) return std::nullopt;
  return end;
}

store::asio::awaitable<void> Ends::record(wire::EndedSandbox ended) {
  if (!base::SandboxId::parse(ended.sandbox)) co_return;
  Backoff backoff;
  while (true) {
    auto const recorded = co_await try_record(ended);
    if (recorded) co_return;
    if (!base::may_retry(recorded.error().code())) {
      // Looks at the node's list find the row later, without the cause.
      base::log::error("end_not_recorded",
                       {{"sandbox", ended.sandbox}, {"why", recorded.error().message()}});
      co_return;
    }
    co_await async::sleep_for(backoff.next());
  }
}

async::Task<void> Ends::try_record(wire::EndedSandbox ended) {
  if (SPACE_FAULT("controller.ended.before_row"))
    co_return base::fail(base::Code::unavailable, "fault");
  auto row = co_await store_.sandboxes.find_live(ended.sandbox, base::system_clock().in(3s));
  if (!row) co_return base::passing(row);
  if (!*row) co_return base::Result<void>();
  auto end = end_for(**row, ended);
  if (!end) co_return base::Result<void>();
  auto const reason = end->reason;
  auto done = co_await store_.sandboxes.end(std::move(*end), base::system_clock().in(3s));
  if (!done) co_return base::passing(done);
  if (*done)
    base::log::info("sandbox_ended",
                    {{"sandbox", ended.sandbox}, {"reason", domain::name_of(reason)}});
  co_return base::Result<void>();
}

}  // namespace controller
