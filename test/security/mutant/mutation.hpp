#pragma once

#include <string>
#include <string_view>

#include <boost/asio/co_spawn.hpp>  // tidy-allow(heavy): two programs of the mutation run include it

/// Which defence is taken away, in the programs of the mutation run only (test/security/mutate.py
/// makes their sources; nothing of this is in a program that ships). One at a time, chosen while
/// the program runs: the gateway takes the name from a rule `mutant:NAME` of its policy, the broker
/// from a credential `mutant:NAME`.
namespace mutation {

inline std::string& selected() {
  static std::string name;
  return name;
}

inline bool on(std::string_view name) {
  return selected() == name;
}

inline void select(std::string_view id) {
  constexpr std::string_view prefix = "mutant:";
  selected() = id.starts_with(prefix) ? std::string(id.substr(prefix.size())) : std::string();
}

template <class Policy> void select_by_rule(Policy const& policy) {
  selected().clear();
  for (auto const& level : policy.levels)
    for (auto const& rule : level.policy.rules)
      if (rule.id.starts_with("mutant:")) select(rule.id);
}

/// The last head as it came, for a gateway that passes on what it was given.
inline std::string& raw_head() {
  static std::string text;
  return text;
}

}  // namespace mutation
