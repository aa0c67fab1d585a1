#pragma once

#include "wire/config.hpp"

#include <boost/json/object.hpp>

/// What a benchmark writes down about the machine and the programs it measured. Reads /proc.
namespace cli {

namespace json = boost::json;

/// Cores, processor, kernel, memory, load.
json::object host_facts();

/// Resident MiB of each program of the installation, by name; empty when its supervisor does not
/// run.
json::object program_memory_mib(wire::Config const& config);

/// Each machine's own memory in MiB (proportional set size, so that shared pages count once):
/// processes whose user id is one of the installation's slots. Needs root.
std::vector<double> machine_memory_mib(wire::Config const& config);

}  // namespace cli
