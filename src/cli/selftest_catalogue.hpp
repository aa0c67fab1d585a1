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
  std::string unseen;    // what should have followed and did not
};

struct Catalogue {
  std::vector<std::pair<std::string, json::object>> policies;
  std::vector<Case> cases;
};

/// `token` makes a new one for each step. Cases that need an answer which the servers here do not
/// give are there with the reason why they are not tried.
base::Result<Catalogue> load_catalogue(std::string_view text,
                                       std::function<std::string()> const& token);

/// Does it make a server send the credential back? Then that credential is quarantined.
bool reflects(Case const& one);
/// The case in parts of one attack each, the control with the first.
std::vector<Case> in_parts(Case const& one);

/// What the guest's program gets for these cases.
std::string text_for_guest(std::vector<Case const*> const& cases);
/// Takes what it printed into the cases' steps.
void take_results(std::string_view printed, std::vector<Case*> const& cases);

/// All that a server read of one connection.
struct Arrival {
  std::string where;  // ADDRESS:PORT
  std::string text;
};

/// What was seen outside of the guest.
struct Outside {
  std::vector<Arrival> arrived;
  std::function<std::size_t(std::string const& token)> passed;  // frames, behind the guard
  std::int64_t tracked = 0;                // connections of the slot that the kernel remembers
  std::vector<json::object> audited = {};  // the records of decisions
};

struct CaseVerdict {
  std::string id, what;
  std::string verdict;  // held, broken, not tried
  std::string why;
};
BOOST_DESCRIBE_STRUCT(CaseVerdict, (), (id, what, verdict, why))

CaseVerdict judge(Case const& one, Outside const& outside);

}  // namespace cli::selftest
