#include "cli/parse.hpp"

#include <csignal>
#include <cstdio>
#include <exception>
#include <vector>

int main(int argc, char** argv) {
  std::signal(
      SIGPIPE,
      SIG_IGN);  // a closed pipe is an error of the write, not the end of a half-done change
  try {
    return cli::run(std::vector<std::string>(argv, argv + argc));
  } catch (std::exception const& error) {
    std::fprintf(stderr, "space: something went wrong inside: %s\n", error.what());
    return 1;
  }
}
