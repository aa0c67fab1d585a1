#pragma once

#include "base/result.hpp"
#include "wire/config.hpp"

/// Where this host's installation is, for the command line of anybody and for `space up`.
namespace cli {

/// --run-dir, else SPACE_RUN_DIR, else /run/space; the same for data.
std::string run_dir_or_default(std::string const& given);
std::string data_dir_or_default(std::string const& given);

/// The configuration that `space up` saved: <data_dir>/config.json (root only).
std::string saved_config_path(std::string const& data_dir);

/// What runs on this host, else what was saved, else the defaults.
wire::Config config_of_host();

/// The first admin key: readable by root alone.
std::string admin_key_path(wire::Config const& config);

/// The lines that point E2B clients here.
std::string e2b_lines(wire::Config const& config, std::string const& key);
/// The same for plain HTTP, for tools that cannot trust our certificate authority.
std::string e2b_lines_plain(wire::Config const& config, std::string const& key);

std::string http_address(wire::Config const& config);
std::string https_address(wire::Config const& config);
std::string ca_path(wire::Config const& config);

}  // namespace cli
