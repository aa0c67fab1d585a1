#pragma once

/// Always on, release builds too. For bugs of ours, never for what a guest, a peer, the disk or the
/// kernel can cause. `why` says why the condition holds.
#define SPACE_ASSERT(condition, why)      \
  (static_cast<bool>(condition) ? void(0) \
                                : ::base::assert_failed(#condition, why, __FILE__, __LINE__))

/// A belief that cannot be proved: logged and counted in production, aborts where SPACE_FAULTS is
/// on.
#define SPACE_BUG(condition, what) \
  (static_cast<bool>(condition) ? void(0) : ::base::bug_found(#condition, what, __FILE__, __LINE__))

namespace base {
[[noreturn]] void assert_failed(char const* condition,
                                char const* why,
                                char const* file,
                                int line) noexcept;
void bug_found(char const* condition, char const* what, char const* file, int line) noexcept;
}  // namespace base
