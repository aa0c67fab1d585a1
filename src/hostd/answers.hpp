#pragma once

#include "hostd/host.hpp"

#include <string>
#include <string_view>

/// What the files of Host share. For them alone.
namespace hostd {

Answer answer_of(Status status, std::string_view reason = {});

/// Logs `event` with the failure, which the caller hears of in one sentence.
Answer failed(base::Error const& error, char const* event, std::uint32_t slot);

/// What changes when somebody puts another file in its place, one line.
std::string key_of_file(std::string const& path);

/// What every guest runs must not be exchangeable by anybody but root.
base::Result<void> check_guest_file(std::string const& path);

}  // namespace hostd
