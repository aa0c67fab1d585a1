#pragma once

#include "http/message.hpp"

#include <cstdint>
#include <string>
#include <string_view>

/// What an agent may answer, and what is believed of it. A guest's root can replace the agent, so
/// each of these texts is hostile: bounded before it gets here, and only known fields go on. Pure;
/// fuzzed.
namespace worker {

inline constexpr std::size_t reply_bytes_max = std::size_t{16} * 1024;

/// The answer to POST /init. 204 with our nonce, or an error that says what the guest said (as
/// printable text).
base::Result<void> judge_init_reply(int status,
                                    http::Headers const& headers,
                                    std::string_view body,
                                    std::string_view nonce);

/// The answer to GET /metrics: the numbers of the in-guest protocol and nothing else, as JSON.
base::Result<std::string> judge_metrics_reply(int status, std::string_view body);

/// A few lines of an answer for a log.
std::string printable_reply(std::string_view body);

}  // namespace worker
