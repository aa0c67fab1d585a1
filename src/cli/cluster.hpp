#pragma once

#include "cli/process.hpp"
#include "wire/config.hpp"

/// The private PostgreSQL cluster of an installation: <data_dir>/postgres, a socket in
/// <run_dir>/postgres and no TCP. Runs under its own user; others are known by their user id
/// (`peer`), no passwords exist.
namespace cli {

/// Directory of PostgreSQL's programs; `version` "" takes the newest. Fails with what to install.
base::Result<std::string> find_postgres(std::string const& version);

/// Makes the cluster when it is missing (1 to 2 s) and writes who may connect as what.
base::Result<bool> ensure_cluster(wire::Config const& config);

/// The command line of the server, in the foreground.
base::Result<std::vector<std::string>> database_command(wire::Config const& config);

}  // namespace cli
