#pragma once

#include "async/task.hpp"
#include "base/secret.hpp"
#include "net/byte_stream.hpp"
#include "wire/agent.hpp"

#include <functional>
#include <memory>
#include <string>

#include <boost/json/object.hpp>

namespace http {
class Connection;
}

/// Calls to one guest's agent over a connection that was made into its slot. Bounded in time and
/// size.
namespace worker {

/// GET /health on a fresh connection, then POST /init on the same. Errors: unavailable (no agent
/// there yet, or cut off: try again), internal (it answered wrongly), deadline_exceeded.
async::Task<void> initialise_agent(net::Stream connection,
                                   wire::AgentInit init,
                                   base::Deadline deadline,
                                   std::function<void()> on_answer);

/// The same without the question first: for a machine that has answered before.
async::Task<void> claim_agent(net::Stream connection,
                              wire::AgentInit init,
                              base::Deadline deadline);

/// A connection to an agent that stays open from one call to the next.
using AgentLine = std::shared_ptr<http::Connection>;

/// claim_agent() over such a line. The line is of no use after an error.
async::Task<void> claim_agent_over(AgentLine line, wire::AgentInit init, base::Deadline deadline);

/// What claims a machine and what is asked of it first, in the very requests: POST /init, a
/// program, a shell and an interpreter, POST /init. Whether the programs run is not judged. Errors:
/// as initialise_agent().
async::Task<AgentLine> rehearse_agent(net::Stream connection,
                                      wire::AgentInit init,
                                      base::Deadline deadline);

/// GET /health of a machine that belongs to nobody yet, POST /init, then what users run first: a
/// login shell and an interpreter, so that nothing of them is new to the emulator or cold in
/// memory. Whether those run is not judged: a template may have neither. Errors: as
/// initialise_agent().
async::Task<void> exercise_agent(net::Stream connection,
                                 wire::AgentInit init,
                                 base::Deadline deadline,
                                 std::function<void()> on_answer);

/// POST /init of a running guest's agent: `changes` brings the init key and the same `nonce`.
async::Task<void> update_agent(net::Stream connection,
                               boost::json::object changes,
                               std::string nonce,
                               base::Deadline deadline);

/// GET /metrics with what opens it: the init key.
async::Task<std::string> agent_metrics(net::Stream connection,
                                       std::string init_key,
                                       base::Deadline deadline);

}  // namespace worker
