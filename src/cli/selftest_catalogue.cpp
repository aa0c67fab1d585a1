#include "cli/selftest_catalogue.hpp"

#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>

namespace cli::selftest {
namespace {

using base::Code;

std::string text_at(json::object const& object, std::string_view key) {
  auto const* value = object.if_contains(key);
  return value && value->is_string() ? std::string(value->get_string()) : std::string();
}

std::string replaced(std::string text, std::string_view what, std::string_view by) {
  for (auto at = text.find(what); at != std::string::npos; at = text.find(what, at + by.size()))
    text.replace(at, what.size(), by);
  return text;
}

/// `vary` gives one field many values, or ("*") many fields one step each; "{field}" in a text is
/// that value.
std::vector<json::object> attacks_of(json::object const& one) {
  auto const& base = one.at("attack").as_object();
  auto const* vary = one.if_contains("vary");
  if (!vary) return {base};
  std::vector<json::object> made;
  auto const& [field, values] = *vary->as_object().begin();
  for (auto const& value : values.as_array()) {
    auto step = base;
    if (field == "*") {
      for (auto const& [key, part] : value.as_object())
        step[key] = part;
    } else if (value.is_string()) {
      auto const quoted = json::serialize(value);
      auto const text = replaced(json::serialize(step),
                                 fmt::format("{{{}}}", std::string_view(field)),
                                 std::string_view(quoted).substr(1, quoted.size() - 2));
      step = json::parse(text).as_object();
      step[field] = value;
    } else {
      step[field] = value;
    }
    made.push_back(std::move(step));
  }
  return made;
}

/// What only the rig of test/security has: servers that break the protocol, credentials at a
/// broker, certificates of every kind of badness, records of the audit.
std::string reason_not_here(json::object const& one) {
  auto const text = json::serialize(one);
  for (std::string_view needs : {"hostile.example",
                                 "api.example",
                                 "api.github.com",
                                 "\"resume\"",
                                 "expired.example",
                                 "second.example\", \"send"})
    if (text.find(needs) != std::string::npos) return "needs a server of test/security";
  auto const* servers = one.if_contains("servers");
  if (servers && servers->is_object()) return "looks into what a server of test/security read";
  if (one.contains("tracked")) return "looks into the kernel's tables";
  return {};
}

/// Rules that need a credential are left out: there is none.
json::object without_credentials(json::object policy) {
  json::array kept;
  for (auto const& rule : policy["rules"].as_array())
    if (!rule.as_object().contains("inject")) kept.push_back(rule);
  policy["rules"] = std::move(kept);
  return policy;
}

bool starts_with_one_of(std::string_view saw, json::value const& list) {
  return std::ranges::any_of(list.as_array(), [&](json::value const& prefix) {
    return saw.starts_with(std::string_view(prefix.get_string()));
  });
}

std::string fault_of_control(Case const& one, Step const& step, Outside const& outside) {
  if (!starts_with_one_of(step.saw, one.control.at("sees")))
    return fmt::format("the control did not work: the guest saw \"{}\"", step.saw);
  auto const where = text_at(one.control, "arrives");
  if (where == "servers" && !outside.arrived(step.token)) return "the control did not arrive";
  if (where == "guard" && outside.passed(step.token) == 0)
    return "the control's lawful frame did not pass the guard";
  return {};
}

std::string fault_of_attack(Case const& one, Step const& step, Outside const& outside) {
  if (outside.arrived(step.token)) {
    auto const* servers = one.data.if_contains("servers");
    if (!servers) return "it arrived at a server: " + json::serialize(step.step);
  }
  auto const passed = outside.passed(step.token);
  auto const* most = one.data.if_contains("guard_at_most");
  auto const allowed = most ? static_cast<std::size_t>(most->to_number<std::uint64_t>()) : 0;
  if (text_at(step.step, "do") == "frame" && text_at(one.data, "guard") != "any" &&
      passed > allowed)
    return fmt::format("{} frames passed the guard: {}", passed, json::serialize(step.step));
  if (!starts_with_one_of(step.saw, one.data.at("sees")))
    return fmt::format("the guest saw \"{}\": {}", step.saw, json::serialize(step.step));
  return {};
}

Case make_case(json::object const& one,
               json::object const& controls,
               std::function<std::string()> const& token) {
  Case made;
  made.id = text_at(one, "id");
  made.what = text_at(one, "what");
  made.policy = one.contains("policy") ? text_at(one, "policy") : "base";
  made.data = one;
  auto const& control = one.at("control");
  made.control =
      control.is_string() ? controls.at(control.get_string()).as_object() : control.as_object();
  made.not_here = reason_not_here(one);
  if (made.not_here.empty()) made.not_here = reason_not_here(made.control);
  made.steps.push_back({true, made.control.at("step").as_object(), token(), {}});
  for (auto& step : attacks_of(one))
    made.steps.push_back({false, std::move(step), token(), {}});
  return made;
}

}  // namespace

base::Result<Catalogue> load_catalogue(std::string_view text,
                                       std::function<std::string()> const& token) {
  boost::system::error_code error;
  auto const document = json::parse(text, error);
  if (error || !document.is_object()) return base::fail(Code::internal, "the catalogue is no JSON");
  Catalogue out;
  auto const& root = document.as_object();
  for (auto const& [name, policy] : root.at("policies").as_object())
    out.policies.emplace_back(name, without_credentials(policy.as_object()));
  for (auto const& one : root.at("cases").as_array())
    out.cases.push_back(make_case(one.as_object(), root.at("controls").as_object(), token));
  return out;
}

std::string text_for_guest(std::vector<Case const*> const& cases) {
  json::array out;
  for (auto const* one : cases) {
    json::array steps;
    json::array tokens;
    for (auto const& step : one->steps) {
      steps.push_back(json::array{step.control ? "control" : "attack", step.step});
      tokens.emplace_back(step.token);
    }
    out.push_back(
        json::object{{"id", one->id}, {"steps", std::move(steps)}, {"tokens", std::move(tokens)}});
  }
  return json::serialize(out);
}

void take_results(std::string_view printed, std::vector<Case*> const& cases) {
  while (!printed.empty()) {
    auto const end = printed.find('\n');
    auto const line = printed.substr(0, end);
    printed.remove_prefix(end == std::string_view::npos ? printed.size() : end + 1);
    boost::system::error_code error;
    auto const parsed = json::parse(line, error);
    if (error || !parsed.is_object()) continue;
    // The guest is hostile: a result counts only for the step whose token it names.
    auto const token = text_at(parsed.as_object(), "token");
    for (auto* one : cases)
      for (auto& step : one->steps)
        if (step.token == token) step.saw = text_at(parsed.as_object(), "saw");
  }
}

CaseVerdict judge(Case const& one, Outside const& outside) {
  CaseVerdict out{one.id, one.what, "held", {}};
  if (!one.not_here.empty()) {
    out.verdict = "not tried";
    out.why = one.not_here;
    return out;
  }
  for (auto const& step : one.steps) {
    std::string fault;
    if (step.saw.empty() || step.saw.starts_with("broke")) {
      fault = step.saw.empty() ? "a step did not run" : step.saw;
    } else {
      fault =
          step.control ? fault_of_control(one, step, outside) : fault_of_attack(one, step, outside);
    }
    if (fault.empty()) continue;
    out.verdict = "broken";
    out.why = fault;
    break;
  }
  return out;
}

}  // namespace cli::selftest
