#include "domain/template_name.hpp"

#include "base/id.hpp"

#include <algorithm>

namespace domain {
namespace {

constexpr std::size_t part_bytes_max = 128;

bool is_lower_or_digit(char c) noexcept {
  return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
}

std::string lowered(std::string_view text) {
  std::string out(text);
  // ASCII only: bytes of other alphabets are refused by the checks below.
  std::ranges::transform(out, out.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  return out;
}

/// "" when `part` is fine, else a sentence.
std::string problem_of(std::string_view part, std::string_view what, std::string_view extra) {
  if (part.empty()) return fmt::format("the template's {} is empty", what);
  if (part.size() > part_bytes_max) {
    return fmt::format("the template's {} is longer than {} characters", what, part_bytes_max);
  }
  auto const fits = [&](char c) {
    return is_lower_or_digit(c) || c == '-' || c == '_' || extra.contains(c);
  };
  if (!std::ranges::all_of(part, fits)) {
    return fmt::format("the template's {} may hold a-z, 0-9, '-', '_'{} only",
                       what,
                       extra.empty() ? "" : " and '.'");
  }
  return {};
}

}  // namespace

base::Result<std::string> parse_tag(std::string_view text) {
  auto tag = lowered(text);
  if (auto problem = problem_of(tag, "tag", "."); !problem.empty()) {
    return base::fail(base::Code::invalid_argument, std::move(problem));
  }
  if (is_uuid(tag)) {
    return base::fail(base::Code::invalid_argument,
                      "the template's tag may not look like a build id");
  }
  return tag;
}

base::Result<TemplateName> parse_template_name(std::string_view text) {
  auto const invalid = [](std::string why) {
    return base::fail(base::Code::invalid_argument, std::move(why));
  };
  TemplateName name;
  auto rest = lowered(text);
  if (auto const colon = rest.find(':'); colon != std::string::npos) {
    auto tag = parse_tag(std::string_view(rest).substr(colon + 1));
    if (!tag) return base::passing(tag);
    name.tag = std::move(*tag);
    rest.resize(colon);
  } else {
    name.tag = default_tag;
  }
  if (auto const slash = rest.find('/'); slash != std::string::npos) {
    name.name_space = rest.substr(0, slash);
    rest.erase(0, slash + 1);
    auto problem = problem_of(name.name_space, "namespace", "");
    if (!problem.empty()) return invalid(std::move(problem));
  }
  auto problem = problem_of(rest, "name", "");
  if (!problem.empty()) return invalid(std::move(problem));
  name.alias = std::move(rest);
  return name;
}

bool is_uuid(std::string_view text) noexcept {
  if (text.size() != 36) return false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    char const c = text[i];
    bool const dash = i == 8 || i == 13 || i == 18 || i == 23;
    bool const hex = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
    if (dash ? c != '-' : !hex) return false;
  }
  return true;
}

bool is_template_id(std::string_view text) noexcept {
  return text.size() == 20 && std::ranges::all_of(text, is_lower_or_digit);
}

std::string_view sandbox_id_in(std::string_view text) noexcept {
  auto const id = text.substr(0, text.find('-'));
  return base::is_short_id('i', id) ? id : std::string_view();
}

}  // namespace domain
