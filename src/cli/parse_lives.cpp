// The verbs that put sandboxes to sleep and copy them.
#include "cli/life_verbs.hpp"
#include "cli/parse_tree.hpp"

#include <CLI/CLI.hpp>

namespace cli {
namespace {

void add_move(Tree const& tree,
              CLI::App* noun,
              std::string const& verb,
              std::string const& help,
              std::string const& footer) {
  auto options = std::make_shared<MoveOptions>();
  options->verb = verb;
  auto* app = noun->add_subcommand(verb, help);
  app->add_option("ID", options->ids, "the sandboxes")->required();
  if (verb == "resume")
    app->add_option("--timeout", options->timeout, "its life from then on, like 30m");
  app->add_flag("--no-wait", options->no_wait, "return before it is done");
  app->footer(footer);
  tree.verb(app, options, &sandbox_move);
}

}  // namespace

void add_lives(Tree const& tree, CLI::App* noun) {
  add_move(tree,
           noun,
           "pause",
           "Stop its processors; memory stays on its host",
           "Go on: space sandbox resume ID");
  add_move(tree,
           noun,
           "suspend",
           "Keep memory and disk on its host's disk and release the rest",
           "Processes, open files and servers go on at: space sandbox resume ID, or the next "
           "command");
  add_move(tree, noun, "resume", "Go on where it was paused or suspended", "");

  auto fork = std::make_shared<ForkOptions>();
  auto* fork_verb =
      noun->add_subcommand("fork", "Copies that go on from this moment; prints their ids");
  fork_verb->add_option("ID", fork->sandbox)->required();
  optional_count(fork_verb, *fork);
  fork_verb->add_option("--timeout", fork->timeout, "of each copy, like 30m");
  tree.verb(fork_verb, fork, &sandbox_fork);

  auto take = std::make_shared<SnapshotOptions>();
  auto* snapshot = noun->add_subcommand(
      "snapshot", "Take a snapshot of it, memory included, and print its id; it goes on");
  snapshot->add_option("ID", take->sandbox)->required();
  snapshot->add_option("--name", take->name, "to start from: space sandbox create --snapshot NAME");
  snapshot->add_option("--expires-in", take->expires_in, "like 7d");
  tree.verb(snapshot, take, &sandbox_snapshot);
}

void optional_count(CLI::App* app, ForkOptions& options) {
  app->add_option("--count", options.count, "how many (default 1)")->check(CLI::Range(1, 100));
}

void add_snapshot(Tree const& tree) {
  auto* noun = tree.noun("snapshot", "What sandboxes can be started from again");
  auto sandbox = std::make_shared<std::string>();
  auto* list = noun->add_subcommand("list", "The project's snapshots, newest first")->alias("ls");
  list->add_option("--sandbox", *sandbox, "only of this one");
  tree.verb(list, sandbox, &snapshot_list);
  auto ids = std::make_shared<std::vector<std::string>>();
  auto* remove = noun->add_subcommand("rm", "Remove snapshots; what was started from them lives on")
                     ->alias("remove");
  remove->add_option("ID", *ids)->required();
  tree.verb(remove, ids, &snapshot_remove);
}

void add_drain(Tree const& tree, CLI::App* noun) {
  auto options = std::make_shared<DrainOptions>();
  auto* app =
      noun->add_subcommand("drain", "Suspend every sandbox of a host and start no new one there");
  app->add_option("NODE", options->node, "see: space node list")->required();
  app->add_flag("--off", options->off, "it takes sandboxes again");
  app->add_flag("--no-wait", options->no_wait, "return before all are suspended");
  tree.verb(app, options, &node_drain);
}

}  // namespace cli
