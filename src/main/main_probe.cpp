// space-probe: what `space selftest host` runs in the jails of machines and gateways in place of
// them. One attempt per process, because a jail answers some with its end. Says "result N" with the
// error number; 0 is a wall that is not there.

#include "gateway/control.hpp"
#include "hostd/probe_actions.hpp"

#include <cstdio>
#include <string_view>

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fputs("usage: space-probe machine|gateway ACTION ARGUMENT\n", stderr);
    return 2;
  }
  // A gateway puts its own system call filter on before it reads a stranger's byte.
  if (std::string_view(argv[1]) == "gateway") {
    auto const confined = gateway::confine();
    if (!confined) {
      std::fputs("not confined\n", stdout);
      return 3;
    }
  }
  std::printf("begin\n");
  std::fflush(stdout);
  std::printf("result %d\n", hostd::probe(argv[2], argv[3]));
  std::fflush(stdout);
  return 0;
}
