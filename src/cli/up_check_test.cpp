#include "cli/up_check.hpp"

#include <functional>

#include <gtest/gtest.h>

namespace cli {
namespace {

TEST(UpCheck, NamesAndAddressesAreLookedAtBeforeAnythingStarts) {
  EXPECT_EQ(problem_of_names(wire::Config()), "");

  struct Case {
    std::function<void(wire::Config&)> change;
    char const* field;  // "" = fine
  };

  for (auto const& [change, field] : std::vector<Case>{
           {[](auto& c) { c.http_port = 0; }, "http-port"},
           {[](auto& c) { c.tls_port = c.http_port; }, "http-port"},
           {[](auto& c) { c.listen_addresses = {}; }, "listen"},
           {[](auto& c) { c.listen_addresses = {"999.1.1.1"}; }, "listen"},
           {[](auto& c) { c.listen_addresses = {"localhost"}; }, "listen"},
           {[](auto& c) { c.listen_addresses = {"0.0.0.0", "::"}; }, ""},
           {[](auto& c) { c.domain = "bad_domain!"; }, "domain"},
           {[](auto& c) { c.domain = "Upper.example"; }, "domain"},
           {[](auto& c) { c.domain = "a..b"; }, "domain"},
           {[](auto& c) { c.domain = "x.example:0"; }, "domain"},
           {[](auto& c) { c.domain = "x.example:443x"; }, "domain"},
           {[](auto& c) { c.domain = "x.example"; }, ""},
           {[](auto& c) { c.node_name = "a/b"; }, "node-name"},
           {[](auto& c) { c.node_name = ""; }, "node-name"},
           {[](auto& c) { c.private_routes = {"x"}; }, "private-route"},
           {[](auto& c) { c.private_routes = {"10.0.0.0/33"}; }, "private-route"},
           {[](auto& c) { c.private_routes = {"10.0.0.0/8", "fd00::/64", "10.1.1.1"}; }, ""}}) {
    wire::Config config;
    change(config);
    auto const problem = problem_of_names(config);
    EXPECT_EQ(problem.substr(0, problem.find_first_of(",:")), field);
  }
}

}  // namespace
}  // namespace cli
