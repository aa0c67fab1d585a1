#include "controlplane/json_schema.hpp"

#include <algorithm>
#include <regex>

#include <fmt/format.h>

namespace controlplane::testing {
namespace {

namespace json = boost::json;

std::string kind_of(json::value const& value) {
  switch (value.kind()) {
    case json::kind::null:
      return "null";
    case json::kind::bool_:
      return "boolean";
    case json::kind::int64:
    case json::kind::uint64:
      return "integer";
    case json::kind::double_:
      return "number";
    case json::kind::string:
      return "string";
    case json::kind::array:
      return "array";
    case json::kind::object:
      return "object";
  }
  return "?";
}

json::value const* field(json::object const& object, std::string_view name) {
  return object.if_contains(name);
}

std::string misfit_text(json::string const& text,
                        json::object const& schema,
                        std::string const& path) {
  if (auto const* list = field(schema, "enum")) {
    auto const& array = list->as_array();
    if (std::ranges::find(array, json::value(text)) == array.end())
      return fmt::format("{}: \"{}\" is not in the enum", path, std::string_view(text));
  }
  if (auto const* pattern = field(schema, "pattern")) {
    if (!std::regex_search(std::string(text), std::regex(std::string(pattern->as_string()))))
      return path + ": does not match the pattern";
  }
  if (auto const* format = field(schema, "format"); format && format->as_string() == "date-time") {
    static std::regex const rfc3339("^\\d{4}-\\d\\d-\\d\\dT\\d\\d:\\d\\d:\\d\\d(\\.\\d+)?Z$");
    if (!std::regex_match(std::string(text), rfc3339)) return path + ": is no RFC 3339 time";
  }
  return {};
}

}  // namespace

json::value const* Schemas::resolve(json::value const& value) const {
  auto const* reference = field(value.as_object(), "$ref");
  if (!reference) return &value;
  std::string_view rest = reference->as_string();
  if (!rest.starts_with("#/")) return nullptr;
  rest.remove_prefix(2);
  auto const* at = &document_;
  for (;;) {
    auto const slash = rest.find('/');
    auto const* object = at->if_object();
    at = object ? field(*object, rest.substr(0, slash)) : nullptr;
    if (!at) return nullptr;
    if (slash == std::string_view::npos) return at;
    rest.remove_prefix(slash + 1);
  }
}

std::string Schemas::misfit(json::value const& value,
                            json::value const& given,
                            std::string const& path) const {
  auto const* resolved = resolve(given);
  if (!resolved) return path + ": the schema's $ref leads nowhere";
  auto const& schema = resolved->as_object();
  auto const kind = kind_of(value);
  if (value.is_null() && field(schema, "nullable")) return {};
  if (auto const* type = field(schema, "type")) {
    auto const wanted = std::string(type->as_string());
    if (wanted != kind && !(wanted == "number" && kind == "integer"))
      return fmt::format("{}: is {}, not {}", path, kind, wanted);
  }
  if (auto const* text = value.if_string()) return misfit_text(*text, schema, path);
  if (value.is_number()) {
    auto const number = value.to_number<double>();
    if (auto const* least = field(schema, "minimum"); least && number < least->to_number<double>())
      return path + ": below the minimum";
    if (auto const* most = field(schema, "maximum"); most && number > most->to_number<double>())
      return path + ": above the maximum";
  }
  if (auto const* array = value.if_array()) {
    auto const* items = field(schema, "items");
    for (std::size_t i = 0; items && i < array->size(); ++i) {
      auto wrong = misfit((*array)[i], *items, fmt::format("{}[{}]", path, i));
      if (!wrong.empty()) return wrong;
    }
  }
  auto const* object = value.if_object();
  if (!object) return {};
  if (auto const* required = field(schema, "required")) {
    for (auto const& name : required->as_array())
      if (!object->contains(name.as_string()))
        return fmt::format("{}: \"{}\" is missing", path, std::string_view(name.as_string()));
  }
  auto const* properties = field(schema, "properties");
  auto const* additional = field(schema, "additionalProperties");
  for (auto const& member : *object) {
    auto const below = path + "." + std::string(member.key());
    auto const* known = properties ? field(properties->as_object(), member.key()) : nullptr;
    if (!known && additional && additional->is_object()) known = additional;
    if (!known && additional && additional->is_bool() && !additional->as_bool())
      return below + ": is not in the schema";
    if (!known) continue;
    auto wrong = misfit(member.value(), *known, below);
    if (!wrong.empty()) return wrong;
  }
  return {};
}

json::value const* Schemas::of_answer(std::string const& method,
                                      std::string const& pattern,
                                      int status,
                                      std::string const& type) const {
  auto const* path = field(document().at("paths").as_object(), pattern);
  auto lower = method;
  std::ranges::transform(
      lower, lower.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  auto const* operation = path ? field(path->as_object(), lower) : nullptr;
  auto const* responses = operation ? field(operation->as_object(), "responses") : nullptr;
  if (!responses) return nullptr;
  auto const* answer = field(responses->as_object(), std::to_string(status));
  if (!answer && status >= 400) answer = field(responses->as_object(), "default");
  answer = answer ? resolve(*answer) : nullptr;
  auto const* content = answer ? field(answer->as_object(), "content") : nullptr;
  auto const* media = content ? field(content->as_object(), type) : nullptr;
  return media ? field(media->as_object(), "schema") : nullptr;
}

}  // namespace controlplane::testing
