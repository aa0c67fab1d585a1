#pragma once

#include "cli/client.hpp"

#include <functional>
#include <memory>

namespace CLI {
class App;
}

/// For the files that declare verbs (parse*.cpp).
namespace cli {

/// What a parsed command line will do.
using Action = std::function<int()>;

/// Everything that the verbs' declarations share: the root, what will be done, the global flags.
struct Tree {
  CLI::App& root;
  Action& action;
  Global const& global;

  CLI::App* noun(std::string const& name, std::string const& help) const;
  /// What happens when `app` is the verb that was said.
  void then(CLI::App* app, Action what) const;

  /// A verb that talks to the API: `run` is called with the options that were parsed.
  template <class Options>
  void verb(CLI::App* app,
            std::shared_ptr<Options> options,
            asio::awaitable<int> (*run)(Session, Options)) const {
    then(app, [global_flags = &global, options, run] {
      return run_verb(*global_flags,
                      [options, run](Session session) { return run(session, *options); });
    });
  }

  /// The same for a verb of other arguments.
  void verb(CLI::App* app, Verb run) const {
    then(app, [global_flags = &global, run] { return run_verb(*global_flags, run); });
  }
};

// parse_lives.cpp
void add_lives(Tree const& tree, CLI::App* sandbox_noun);
void add_snapshot(Tree const& tree);
void add_drain(Tree const& tree, CLI::App* node_noun);

// parse_network.cpp
void add_selftest(Tree const& tree);
void add_policy(Tree const& tree);
void add_credential(Tree const& tree);
void add_audit(Tree const& tree);

}  // namespace cli
