#pragma once

#include "base/result.hpp"

#include <optional>
#include <string>
#include <string_view>

/// The rules of `space cp`, without any file being touched.
namespace cli {

/// One side: a path here, or one in a sandbox.
struct CopyPlace {
  std::string sandbox;  // "" = here
  std::string path;
};

/// "i0123…:path" is in a sandbox ("i…:" alone is its home); anything else is here, also with a
/// colon when `exists_here` says so. Fails when it looks like a sandbox and its id is none.
base::Result<CopyPlace> parse_place(std::string_view text, bool exists_here);

/// Where a source ends up: below the destination when that is a folder (or is written with a slash
/// at its end), else at the destination's own name.
std::string target_of(std::string_view source,
                      std::string_view destination,
                      bool destination_is_folder);

/// `path` below `root` as the relative path to write here, e.g. ("/a", "/a/b/c") → "b/c". Nothing
/// when it does not lie below, or when a component could lead elsewhere: a guest chooses these
/// names.
std::optional<std::string> safe_below(std::string_view root, std::string_view path);

}  // namespace cli
