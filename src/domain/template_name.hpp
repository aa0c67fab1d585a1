#pragma once

#include "base/result.hpp"

#include <string>
#include <string_view>

/// How a caller names what a sandbox is made from: `namespace/alias:tag`, `alias:tag`, `alias`, or
/// a template's id.
namespace domain {

inline constexpr std::string_view default_tag = "default";

struct TemplateName {
  std::string name_space;  // "" = the caller's own, then the public ones
  std::string alias;       // lower-case; 1 to 128 of [a-z0-9-_]. A template id also looks like this
  std::string tag;         // `default_tag` when none was written

  friend bool operator==(TemplateName const&, TemplateName const&) = default;
};

/// Letters are lowered first. Errors (invalid_argument) name the offending part.
base::Result<TemplateName> parse_template_name(std::string_view text);

/// 1 to 128 of [a-z0-9-_.], not shaped like a UUID (builds are named by those), no ':' at either
/// end.
base::Result<std::string> parse_tag(std::string_view text);

bool is_uuid(std::string_view text) noexcept;

/// A template's id: 20 characters of [a-z0-9].
bool is_template_id(std::string_view text) noexcept;

/// The sandbox id in what an E2B client sends: `i…`, or the legacy `i…-clientid`, cut at the dash.
/// Anything that isn't an id of ours is "" (the caller answers "not found", never "bad id").
std::string_view sandbox_id_in(std::string_view text) noexcept;

}  // namespace domain
