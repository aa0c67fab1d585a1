#pragma once

#include "base/result.hpp"

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <boost/describe/class.hpp>
#include <boost/json/object.hpp>

/// The attack catalogue of test/security, compiled in: the same cases, run by the same program
/// inside a guest. Here is what `space selftest egress` makes of them; no I/O.
namespace cli::selftest {

namespace json = boost::json;

/// Of test/security, as text.
std::string_view catalogue_text();
std::string_view attack_program();

struct Step {
  bool control = false;
  json::object step;
  std::string token;  // by which the other sides recognise it
  std::string saw;    // what the program in the guest saw
};

struct Case {
  std::string id, what, policy;
  json::object data;
  json::object control;
  std::vector<Step> steps;
  std::string not_here;  // why it is not tried; "" = it is
};

struct Catalogue {
  std::vector<std::pair<std::string, json::object>> policies;
  std::vector<Case> cases;
};

/// `token` makes a new one for each step. Cases that need a server of the test rig, or a
/// credential, are there with the reason why they are not tried here.
base::Result<Catalogue> load_catalogue(std::string_view text,
                                       std::function<std::string()> const& token);

/// What the guest's program gets for these cases.
std::string text_for_guest(std::vector<Case const*> const& cases);
/// Takes what it printed into the cases' steps.
void take_results(std::string_view printed, std::vector<Case*> const& cases);

/// What was seen outside of the guest.
struct Outside {
  std::function<bool(std::string const& token)> arrived;        // at a server
  std::function<std::size_t(std::string const& token)> passed;  // frames, behind the guard
};

struct CaseVerdict {
  std::string id, what;
  std::string verdict;  // held, broken, not tried
  std::string why;
};
BOOST_DESCRIBE_STRUCT(CaseVerdict, (), (id, what, verdict, why))

CaseVerdict judge(Case const& one, Outside const& outside);

}  // namespace cli::selftest
