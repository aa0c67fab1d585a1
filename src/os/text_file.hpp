#pragma once

#include "os/fd.hpp"

#include <string>

namespace os {

/// A whole small file of the kernel or of ours, at most `limit` bytes (too_large beyond).
base::Result<std::string> read_text(std::string const& path, std::size_t limit = 4U << 20U);

/// Replaces `path` by a file with this content: written beside it, synced, renamed, directory
/// synced. After a crash there is the old or the new content, and perhaps `path`.new.
base::Result<void> write_text_durably(std::string const& path, std::string const& text);

}  // namespace os
