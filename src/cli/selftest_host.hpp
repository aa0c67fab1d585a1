#pragma once

#include "cli/output.hpp"
#include "wire/config.hpp"

#include <boost/describe/enum.hpp>

/// `space selftest host`: code in the place of a machine and of a gateway, with their users, views,
/// namespaces and filters, tries what an intruder would. Each attempt has a control: the same step
/// by root outside, which must succeed.
namespace cli {

BOOST_DEFINE_ENUM_CLASS(Verdict, held, broken, unproven)

struct Attempt {
  std::string what;    // for people
  std::string action;  // of hostd::probe
  std::string argument;
};

struct AttemptResult {
  std::string place;  // machine, gateway
  std::string what;
  Verdict verdict = Verdict::unproven;
  std::string said;     // what the jail answered
  std::string control;  // what it answered outside
};
BOOST_DESCRIBE_STRUCT(AttemptResult, (), (place, what, verdict, said, control))

/// Pure: what the two sides make of an attempt. `status` as from waitpid.
AttemptResult judge(
    std::string place, std::string what, std::string const& printed, int status, int control);

/// All attempts in both places. Needs root; leaves nothing.
base::Result<std::vector<AttemptResult>> run_host_suite(wire::Config const& config);

/// Exit code 1 when a wall is not there.
int selftest_host(Output const& output);

}  // namespace cli
