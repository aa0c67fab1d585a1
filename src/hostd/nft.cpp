#include "hostd/nft.hpp"

#include "os/fd.hpp"

#include <arpa/inet.h>
#include <linux/netfilter/nf_tables.h>
#include <linux/netfilter/nfnetlink.h>
#include <linux/netlink.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <span>
#include <string_view>

#include <fcntl.h>
#include <nftables/libnftables.h>
#include <unistd.h>

namespace hostd {
namespace {

constexpr std::size_t listing_bytes_max = 1 << 20;

void write_all(int to, std::string_view text) {
  while (!text.empty()) {
    auto const put = ::write(to, text.data(), text.size());
    if (put <= 0) return;
    text.remove_prefix(static_cast<std::size_t>(put));
  }
}

enum class Counts : std::uint8_t { left_out, listed };

/// In the child: 0 and what was listed on `report`, or the reason there.
int run(std::string const& commands, Counts counts, int report) {
  auto* const context = nft_ctx_new(NFT_CTX_DEFAULT);
  if (context == nullptr) return 1;
  nft_ctx_buffer_error(context);
  nft_ctx_buffer_output(context);
  if (counts == Counts::left_out) nft_ctx_output_set_flags(context, NFT_CTX_OUTPUT_STATELESS);
  bool const done = nft_run_cmd_from_buffer(context, commands.c_str()) == 0;
  auto const* text = done ? nft_ctx_get_output_buffer(context) : nft_ctx_get_error_buffer(context);
  if (text != nullptr)
    write_all(report, std::string_view(text, std::min(std::strlen(text), listing_bytes_max)));
  return done ? 0 : 1;
}

base::Result<std::string> run_aside(std::string const& commands,
                                    char const* step,
                                    Counts counts = Counts::left_out) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return base::fail_errno("make a pipe");
  os::Fd const report(ends[0]);
  os::Fd report_write(ends[1]);
  // A process of its own, in the namespace of this moment: what the library allocates (3 MiB) goes
  // with it.
  pid_t const child = ::fork();
  if (child < 0) return base::fail_errno("start the loader of packet rules");
  if (child == 0) ::_exit(run(commands, counts, report_write.get()));
  report_write.reset();
  std::string said;
  std::array<char, 16 * 1024> part{};
  for (;;) {
    auto const got = ::read(report.get(), part.data(), part.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    said.append(part.data(), static_cast<std::size_t>(got));
  }
  int status = -1;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (status == 0) return said;
  return base::fail(base::Code::internal, step, said.substr(0, 1000));
}

/// The generation in an answer to NFT_MSG_GETGEN.
base::Result<std::uint32_t> generation_in(std::span<char const> answer) {
  constexpr auto head = NLMSG_HDRLEN + NLMSG_ALIGN(sizeof(nfgenmsg));
  nlmsghdr about{};
  if (answer.size() >= head) std::memcpy(&about, answer.data(), sizeof about);
  if (about.nlmsg_type == (NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_NEWGEN)) {
    for (auto rest = answer.subspan(head); rest.size() >= NLA_HDRLEN;) {
      nlattr attribute{};
      std::memcpy(&attribute, rest.data(), sizeof attribute);
      std::uint32_t value = 0;
      if (attribute.nla_len < NLA_HDRLEN) break;
      if (attribute.nla_type == NFTA_GEN_ID && rest.size() >= NLA_HDRLEN + sizeof value) {
        std::memcpy(&value, rest.data() + NLA_HDRLEN, sizeof value);
        return ntohl(value);
      }
      rest = rest.subspan(std::min<std::size_t>(rest.size(), NLA_ALIGN(attribute.nla_len)));
    }
  }
  return base::fail(base::Code::internal, "the kernel does not tell the generation of its rules");
}

}  // namespace

base::Result<void> load_rules(std::string const& rules) {
  auto loaded = run_aside(rules, "load the packet rules");
  if (!loaded) return base::passing(loaded);
  return {};
}

base::Result<std::string> list_rules(std::string const& command) {
  return run_aside(command, "list the packet rules");
}

base::Result<std::string> list_counts(std::string const& command) {
  return run_aside(command, "list the counts of packet rules", Counts::listed);
}

base::Result<std::uint32_t> rules_generation() {
  os::Fd const socket(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_NETFILTER));
  if (!socket) return base::fail_errno("open a netlink socket");
  // The kernel answers at once; the limit is for a kernel in trouble.
  timeval const limit{.tv_sec = 5, .tv_usec = 0};
  if (::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) != 0)
    return base::fail_errno("limit a netlink socket");

  struct {
    nlmsghdr head{};
    nfgenmsg body{};
  } question;

  question.head.nlmsg_len = sizeof question;
  question.head.nlmsg_type = NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_GETGEN;
  question.head.nlmsg_flags = NLM_F_REQUEST;
  if (::send(socket.get(), &question, sizeof question, 0) < 0)
    return base::fail_errno("ask for the generation of packet rules");
  std::array<char, 4096> answer{};
  auto const got = ::recv(socket.get(), answer.data(), answer.size(), 0);
  if (got < 0) return base::fail_errno("read the generation of packet rules");
  return generation_in(std::span<char const>(answer).first(static_cast<std::size_t>(got)));
}

}  // namespace hostd
