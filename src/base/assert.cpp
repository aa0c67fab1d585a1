#include "base/assert.hpp"

#include <cstdio>
#include <cstdlib>

namespace base {

void assert_failed(char const* condition, char const* why, char const* file, int line) noexcept {
  std::fprintf(stderr, "%s:%d: assertion failed: %s (%s)\n", file, line, condition, why);
  std::abort();
}

void bug_found(char const* condition, char const* what, char const* file, int line) noexcept {
  std::fprintf(stderr, "%s:%d: unexpected: %s (%s)\n", file, line, condition, what);
#ifdef SPACE_FAULTS
  std::abort();
#endif
}

}  // namespace base
