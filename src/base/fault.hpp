#pragma once

/// A named place at which tests can kill or delay the process. Each step of a lifecycle has one;
/// the fault walk in test/ finds them by this macro's name and fails when a step has none. Does
/// nothing (and costs a load) unless SPACE_FAULT_FILE names a file; not compiled into release
/// builds without SPACE_FAULTS.
///
/// The file holds lines "<point> kill" or "<point> delay <ms>" or "<point> fail"; a line acts once
/// and is removed first, so that a restarted process goes on.
#ifdef SPACE_FAULTS
#define SPACE_FAULT(point) ::base::fault_point(point)
#else
#define SPACE_FAULT(point) false
#endif

namespace base {
/// True when the point was armed with "fail": the caller takes its error path.
bool fault_point(char const* point) noexcept;
}  // namespace base
