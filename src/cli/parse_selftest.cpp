#include "cli/parse_tree.hpp"
#include "cli/selftest_egress.hpp"
#include "cli/selftest_host.hpp"

#include <CLI/CLI.hpp>

namespace cli {

void add_selftest(Tree const& tree) {
  auto* noun = tree.noun("selftest", "Attack this installation and see whether it holds");
  auto* host = noun->add_subcommand(
      "host", "What code in the place of a machine or a gateway could reach of this host");
  tree.then(host,
            [global = &tree.global] { return selftest_host(Output::standard(global->as_json)); });
  auto* egress = noun->add_subcommand(
      "egress", "Boot a hostile sandbox beside this installation and try to get out of it");
  tree.then(egress,
            [global = &tree.global] { return selftest_egress(Output::standard(global->as_json)); });
}

}  // namespace cli
