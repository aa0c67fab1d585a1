#pragma once

#include <string_view>

namespace hostd {

/// The shared library made of preload/guest_memory.cpp, carried inside the program.
std::string_view guest_memory_library();

}  // namespace hostd
