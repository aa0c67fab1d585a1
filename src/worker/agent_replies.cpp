#include "worker/agent_replies.hpp"

#include "base/secret.hpp"
#include "vmm/exit_cause.hpp"
#include "wire/codec.hpp"

#include <boost/json/object.hpp>

namespace worker {
namespace {

/// GET /metrics of the in-guest protocol.
struct AgentMetrics {
  std::int64_t ts = 0;
  std::uint32_t cpu_count = 0;
  double cpu_used_pct = 0;
  std::uint64_t mem_total = 0;
  std::uint64_t mem_used = 0;
  std::uint64_t mem_cache = 0;
  std::uint64_t mem_total_mib = 0;
  std::uint64_t mem_used_mib = 0;
  std::uint64_t disk_used = 0;
  std::uint64_t disk_total = 0;

  static bool required(std::string_view name) { return name == "ts"; }

  std::string check() const {
    // NaN and infinities do not survive JSON; a negative load is a lie.
    return cpu_used_pct >= 0 && cpu_used_pct <= 1e6 ? std::string()
                                                    : std::string("cpu_used_pct: out of range");
  }
};
BOOST_DESCRIBE_STRUCT(AgentMetrics,
                      (),
                      (ts,
                       cpu_count,
                       cpu_used_pct,
                       mem_total,
                       mem_used,
                       mem_cache,
                       mem_total_mib,
                       mem_used_mib,
                       disk_used,
                       disk_total))

}  // namespace

std::string printable_reply(std::string_view body) {
  return vmm::printable_tail(body, 3, 300);
}

base::Result<void> judge_init_reply(int status,
                                    http::Headers const& headers,
                                    std::string_view body,
                                    std::string_view nonce) {
  if (status == 204) {
    if (base::equal_in_constant_time(headers.get("x-space-nonce"), nonce)) return {};
    return base::fail(base::Code::internal, "the guest's agent did not return our nonce");
  }
  auto const code = status == 400 ? base::Code::invalid_argument : base::Code::internal;
  return base::fail(
      code,
      fmt::format(
          "the guest's agent refused its start with status {}: {}", status, printable_reply(body)));
}

base::Result<std::string> judge_metrics_reply(int status, std::string_view body) {
  if (status != 200)
    return base::fail(base::Code::unavailable,
                      fmt::format("the guest's agent answered with status {}", status));
  auto const metrics =
      wire::decode_text<AgentMetrics>(body, wire::UnknownKeys::ignore, reply_bytes_max);
  if (!metrics)
    return base::fail(
        base::Code::unavailable, "the guest's agent answered nonsense", metrics.error().message());
  return wire::encode_text(*metrics);
}

}  // namespace worker
