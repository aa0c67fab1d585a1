#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
class ParseError;
}  // namespace CLI

/// What the command line says when it was not understood, and the examples that its help shows.
namespace cli {

/// Prints what is wrong and how it is used, as JSON when that was asked for; the exit code. A noun
/// without a verb gets its help.
int usage_error(CLI::App const& root,
                CLI::ParseError const& error,
                std::vector<std::string> const& arguments);

/// "--template: …" for an option that was given an empty value: a variable of a script that is not
/// set must not become "as if it were not said". "" when there is none.
std::string empty_option(CLI::App const& root);

/// For verbs whose help has none of its own.
void add_examples(CLI::App& root);

}  // namespace cli
