#include "cli/copy_plan.hpp"

#include "base/id.hpp"

namespace cli {
namespace {

std::string_view last_component(std::string_view path) {
  while (path.size() > 1 && path.ends_with('/'))
    path.remove_suffix(1);
  auto const slash = path.rfind('/');
  return slash == std::string_view::npos ? path : path.substr(slash + 1);
}

}  // namespace

base::Result<CopyPlace> parse_place(std::string_view text, bool exists_here) {
  auto const colon = text.find(':');
  auto const before = text.substr(0, colon);
  if (colon == std::string_view::npos || before.find('/') != std::string_view::npos ||
      before.empty())
    return CopyPlace{{}, std::string(text)};
  if (base::is_short_id('i', before)) {
    auto const path = text.substr(colon + 1);
    return CopyPlace{std::string(before), path.empty() ? "." : std::string(path)};
  }
  if (exists_here) return CopyPlace{{}, std::string(text)};
  return base::fail(base::Code::invalid_argument,
                    fmt::format("\"{}\" is no sandbox id (i and 20 letters or digits); write a "
                                "path of this computer like ./{}",
                                before,
                                text));
}

std::string target_of(std::string_view source,
                      std::string_view destination,
                      bool destination_is_folder) {
  if (!destination_is_folder && !destination.ends_with('/')) return std::string(destination);
  std::string out(destination);
  if (!out.ends_with('/')) out += '/';
  auto const name = last_component(source);
  // "." and ".." have no name of their own: their content goes into the folder.
  if (name == "." || name == ".." || name == "/") return out.substr(0, out.size() - 1);
  return out.append(name);
}

std::optional<std::string> safe_below(std::string_view root, std::string_view path) {
  while (root.size() > 1 && root.ends_with('/'))
    root.remove_suffix(1);
  if (!path.starts_with(root)) return std::nullopt;
  auto rest = path.substr(root.size());
  if (root != "/") {
    if (!rest.starts_with('/')) return std::nullopt;
    rest.remove_prefix(1);
  }
  std::string out;
  while (!rest.empty()) {
    auto const slash = rest.find('/');
    auto const name = rest.substr(0, slash);
    if (name.empty() || name == "." || name == ".." || name.size() > 255 ||
        name.find('\0') != std::string_view::npos)
      return std::nullopt;
    out += fmt::format("{}{}", out.empty() ? "" : "/", name);
    rest.remove_prefix(slash == std::string_view::npos ? rest.size() : slash + 1);
  }
  if (out.empty()) return std::nullopt;
  return out;
}

}  // namespace cli
