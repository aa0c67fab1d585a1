#pragma once

#include "wire/config.hpp"

namespace cli {

/// What is wrong with the names and addresses of a configuration, beyond what Config::check() looks
/// at: told here, because the program that meets it later could only say it in its log. "" =
/// nothing.
std::string problem_of_names(wire::Config const& config);

}  // namespace cli
