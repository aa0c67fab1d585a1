#include "cli/selftest_catalogue.hpp"

#include "cli/selftest_answers.hpp"

#include <algorithm>

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

/// The path of an HTTP step in parts; empty when it is none.
std::vector<std::string> path_of(json::object const& step) {
  auto const* send = step.if_contains("send");
  if (send && send->is_array() && !send->get_array().empty()) send = &send->get_array().front();
  if (!send || !send->is_string()) return {};
  auto const line = std::string_view(send->get_string());
  auto const begin = line.find(" /");
  if (begin == std::string_view::npos) return {};
  auto path = line.substr(begin + 2);
  path = path.substr(0, path.find_first_of(" \r\n"));
  std::vector<std::string> parts;
  while (!path.empty()) {
    auto const part = path.substr(0, path.find('/'));
    parts.emplace_back(part);
    path.remove_prefix(std::min(part.size() + 1, path.size()));
  }
  return parts;
}

bool makes_reflect(std::vector<std::string> const& path) {
  return path.size() == 3 && path[0] == "v1" && path[1] == "reflect";
}

/// A server that gives no hostile answer would let such a case pass for nothing.
std::string reason_not_here(json::object const& step) {
  auto const path = path_of(step);
  bool const hostile =
      text_at(step, "to") == "hostile.example" && path.size() > 1 && path.front() != "well";
  if (hostile && !hostile_answer(path.front()))
    return fmt::format("no server here answers with \"{}\"", path.front());
  if (makes_reflect(path) && !encoded_as(path[2], ""))
    return fmt::format("no server here sends a credential back as \"{}\"", path[2]);
  return {};
}

bool starts_with_one_of(std::string_view saw, json::value const& list) {
  return std::ranges::any_of(list.as_array(), [&](json::value const& prefix) {
    return saw.starts_with(std::string_view(prefix.get_string()));
  });
}

/// What was read with this token, and at which servers.
Arrival read_with(std::string const& token, Outside const& outside) {
  auto upper = token;
  std::ranges::transform(upper, upper.begin(), [](char c) {
    return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  });
  Arrival all;
  for (auto const& one : outside.arrived) {
    if (!one.text.contains(token) && !one.text.contains(upper)) continue;
    if (all.where != one.where) all.where += (all.where.empty() ? "" : " ") + one.where;
    all.text += (all.text.empty() ? "" : "\n") + one.text;
  }
  return all;
}

std::string fault_of_text(Arrival const& read, json::object const& wanted) {
  auto const lower = [](std::string_view text) {
    std::string out(text);
    std::ranges::transform(out, out.begin(), [](char c) {
      return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    });
    return out;
  };
  auto const words = [&](std::string_view key) {
    auto const* list = wanted.if_contains(key);
    return list ? list->as_array() : json::array();
  };
  for (auto const& word : words("without"))
    if (lower(read.text).contains(lower(word.as_string())))
      return fmt::format("\"{}\" arrived", std::string_view(word.as_string()));
  for (auto const& word : words("with"))
    if (!read.text.contains(std::string_view(word.as_string())))
      return fmt::format("\"{}\" did not arrive", std::string_view(word.as_string()));
  auto const* most = wanted.if_contains("bytes_below");
  if (most && read.text.size() > most->to_number<std::size_t>())
    return fmt::format("{} bytes arrived", read.text.size());
  auto const where = text_at(wanted, "only_at");
  if (!where.empty() && read.where != where) return fmt::format("it arrived at {}", read.where);
  return {};
}

std::string fault_of_control(Case const& one, Step const& step, Outside const& outside) {
  if (!starts_with_one_of(step.saw, one.control.at("sees")))
    return fmt::format("the control did not work: the guest saw \"{}\"", step.saw);
  auto const where = text_at(one.control, "arrives");
  if (where == "servers") {
    auto const read = read_with(step.token, outside);
    if (read.text.empty()) return "the control did not arrive";
    auto const fault = fault_of_text(read, one.control);
    if (!fault.empty()) return "the control: " + fault;
  }
  if (where == "guard" && outside.passed(step.token) == 0)
    return "the control's lawful frame did not pass the guard";
  return {};
}

std::string fault_of_attack(Case const& one, Step const& step, Outside const& outside) {
  auto const read = read_with(step.token, outside);
  auto const* servers = one.data.if_contains("servers");
  std::string fault;
  if (!servers && !read.text.empty()) fault = "it arrived at a server";
  if (servers && servers->is_object()) fault = fault_of_text(read, servers->get_object());
  if (one.data.contains("unseen") && step.saw.contains("seen"))
    fault = "the guest got what it must not see";
  auto const passed = outside.passed(step.token);
  auto const* most = one.data.if_contains("guard_at_most");
  auto const allowed = most ? most->to_number<std::size_t>() : 0;
  if (text_at(step.step, "do") == "frame" && text_at(one.data, "guard") != "any" &&
      passed > allowed)
    fault = fmt::format("{} frames passed the guard", passed);
  if (!starts_with_one_of(step.saw, one.data.at("sees")))
    fault = fmt::format("the guest saw \"{}\"", step.saw);
  return fault.empty() ? fault : fmt::format("{}: {}", fault, json::serialize(step.step));
}

/// "some" is any number but 0.
bool is_recorded(json::object const& wanted, std::vector<json::object> const& records) {
  return std::ranges::any_of(records, [&](json::object const& record) {
    return std::ranges::all_of(wanted, [&](auto const& field) {
      auto const* has = record.if_contains(field.key());
      if (!has) return false;
      if (field.value() != "some") return *has == field.value();
      return has->is_number() && has->template to_number<double>() > 0;
    });
  });
}

/// Of what is seen only after all steps.
std::string fault_of_whole(Case const& one, Outside const& outside) {
  auto const* audit = one.data.if_contains("audit");
  if (audit && !is_recorded(audit->as_object(), outside.audited))
    return "no record of it in the audit log: " + json::serialize(*audit);
  auto const* tracked = one.data.if_contains("tracked");
  if (tracked && tracked->to_number<std::int64_t>() != outside.tracked)
    return fmt::format("the kernel remembers {} connections of the guest", outside.tracked);
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
  made.steps.push_back({true, made.control.at("step").as_object(), token(), {}});
  for (auto& step : attacks_of(one))
    made.steps.push_back({false, std::move(step), token(), {}});
  for (auto const& step : made.steps)
    if (made.not_here.empty()) made.not_here = reason_not_here(step.step);
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
    out.policies.emplace_back(name, policy.as_object());
  for (auto const& one : root.at("cases").as_array())
    out.cases.push_back(make_case(one.as_object(), root.at("controls").as_object(), token));
  return out;
}

bool reflects(Case const& one) {
  return std::ranges::any_of(one.steps,
                             [](Step const& step) { return makes_reflect(path_of(step.step)); });
}

std::vector<Case> in_parts(Case const& one) {
  std::vector<Case> parts;
  for (auto const& step : one.steps) {
    if (parts.empty() || !(parts.back().steps.back().control)) {
      parts.push_back(one);
      parts.back().steps.clear();
    }
    parts.back().steps.push_back(step);
  }
  return parts;
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
    if (out.why.empty()) out.why = fault;
  }
  if (out.why.empty()) out.why = one.unseen;
  if (out.why.empty()) out.why = fault_of_whole(one, outside);
  if (!out.why.empty()) out.verdict = "broken";
  return out;
}

}  // namespace cli::selftest
