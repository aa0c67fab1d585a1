#include "hostd/nft.hpp"

#include "os/fd.hpp"

#include <sys/wait.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>

#include <fcntl.h>
#include <nftables/libnftables.h>
#include <unistd.h>

namespace hostd {
namespace {

/// In the child: 0 and nothing said, or the reason on `report`.
int load(std::string const& rules, int report) {
  auto* const context = nft_ctx_new(NFT_CTX_DEFAULT);
  if (context == nullptr) return 1;
  nft_ctx_buffer_error(context);
  nft_ctx_buffer_output(context);
  if (nft_run_cmd_from_buffer(context, rules.c_str()) == 0) return 0;
  auto const* text = nft_ctx_get_error_buffer(context);
  if (text != nullptr)
    static_cast<void>(::write(report, text, std::min<std::size_t>(std::strlen(text), 1000)));
  return 1;
}

}  // namespace

base::Result<void> load_rules(std::string const& rules) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return base::fail_errno("make a pipe");
  os::Fd const report(ends[0]);
  os::Fd report_write(ends[1]);
  // A process of its own, in the namespace of this moment: what the library allocates (3 MiB) goes
  // with it.
  pid_t const child = ::fork();
  if (child < 0) return base::fail_errno("start the loader of packet rules");
  if (child == 0) ::_exit(load(rules, report_write.get()));
  report_write.reset();
  std::array<char, 1024> said{};
  auto const got = ::read(report.get(), said.data(), said.size());
  int status = -1;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (status == 0) return {};
  return base::fail(base::Code::internal,
                    "load the packet rules",
                    std::string(said.data(), got > 0 ? static_cast<std::size_t>(got) : 0));
}

}  // namespace hostd
