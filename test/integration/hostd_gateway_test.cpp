// A gateway as hostd starts it: confined, reached over its control socket, found again, and gone
// with its slot. No machine is needed.

#include "integration/hostd_fixture.hpp"
#include "os/text_file.hpp"
#include "wire/gateway.hpp"

#include <sys/socket.h>

#include <csignal>
#include <filesystem>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <poll.h>
#include <unistd.h>

namespace test {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::IsEmpty;

class GatewayTest : public testing::Test {
 protected:
  void SetUp() override {
    hostd_.emplace(installation_);
    ASSERT_TRUE(client().make_slot(1));
  }

  void TearDown() override {
    auto removed = client().remove_slot(1);
    static_cast<void>(removed);
    EXPECT_THAT(installation_.holdings(), IsEmpty());
    if (HasFailure())
      std::puts(os::read_text(installation_.directory() + "/hostd.log").value_or("").c_str());
  }

  hostd::Client client() const { return hostd_->client(); }

  /// Sends a command and reads one line; "" when the gateway hangs up or says nothing for 5 s.
  static std::string ask(hostd::Gateway const& gateway, wire::GatewayCommand const& command) {
    auto const line = wire::encode_text(command) + "\n";
    ::fcntl(gateway.control.get(), F_SETFL, 0);  // the authorities do not fit into one write
    if (::send(gateway.control.get(), line.data(), line.size(), MSG_NOSIGNAL) !=
        static_cast<ssize_t>(line.size()))
      return "";
    std::string heard;
    for (;;) {
      pollfd wait{.fd = gateway.control.get(), .events = POLLIN, .revents = 0};
      if (::poll(&wait, 1, 5000) != 1) return "";
      char byte = 0;
      if (::recv(gateway.control.get(), &byte, 1, 0) != 1) return "";
      if (byte != '\n') {
        heard.push_back(byte);
        continue;
      }
      // Said by itself, because there is no broker here.
      if (heard.find("broker_lost") == std::string::npos) return heard;
      heard.clear();
    }
  }

  static wire::GatewayCommand start_command() {
    wire::GatewayCommand command;
    auto& start = command.start.emplace();
    start.sandbox = "s0";
    start.policy.generation = 3;
    // Nothing below looks at upstream certificates: any authority will do.
    start.trusted_ca_pem =
        os::read_text("/etc/ssl/certs/ca-certificates.crt", 4 << 20).value_or("");
    return command;
  }

  static std::string status_of(std::int32_t pid) {
    return os::read_text(fmt::format("/proc/{}/status", pid)).value_or("");
  }

  Installation installation_;
  std::optional<Hostd> hostd_;
};

TEST_F(GatewayTest, StartsConfinedAndObeysItsControlSocket) {
  auto const gateway = client().start_gateway(1);
  ASSERT_TRUE(gateway) << gateway.error().message() << gateway.error().detail();
  auto const& config = installation_.config();
  EXPECT_EQ(gateway->user_id, config.slot_uid_base + config.slots_max + 1);
  auto const said = ask(*gateway, start_command());
  EXPECT_THAT(said, HasSubstr("BEGIN CERTIFICATE")) << read_to_end(gateway->errors);
  EXPECT_THAT(said, HasSubstr("\"generation\":3"));
  auto const status = status_of(gateway->pid);
  EXPECT_THAT(status, HasSubstr(fmt::format("Uid:\t{0}\t{0}\t{0}\t{0}", gateway->user_id)));
  EXPECT_THAT(status, HasSubstr("CapBnd:\t0000000000000000"));
  EXPECT_THAT(status, HasSubstr("NoNewPrivs:\t1"));
  EXPECT_THAT(status, HasSubstr("Seccomp:\t2"));
  auto const ns = [](std::string const& pid, char const* kind) {
    return fs::read_symlink(fmt::format("/proc/{}/ns/{}", pid, kind)).string();
  };
  for (char const* kind : {"net", "mnt", "pid", "ipc", "uts"})
    EXPECT_NE(ns(std::to_string(gateway->pid), kind), ns("self", kind)) << kind;
}

TEST_F(GatewayTest, IsOneToASlotAndIsFoundAgainByTheNextHostd) {
  auto const first = client().start_gateway(1);
  ASSERT_TRUE(first);
  EXPECT_EQ(client().start_gateway(1).error().code(), base::Code::conflict);
  hostd_->stop(SIGKILL);
  hostd_->start();
  EXPECT_EQ(client().start_gateway(1).error().code(), base::Code::conflict);
  auto const again = client().attach_gateway(1);
  ASSERT_TRUE(again) << again.error().message();
  EXPECT_EQ(again->pid, first->pid);
  EXPECT_EQ(again->user_id, first->user_id);
  EXPECT_THAT(ask(*again, start_command()), HasSubstr("BEGIN CERTIFICATE"));
  ASSERT_TRUE(client().end_gateway(1));
  EXPECT_EQ(client().attach_gateway(1).error().code(), base::Code::not_found);
  EXPECT_TRUE(client().end_gateway(1)) << "repeating is not an error";
}

TEST_F(GatewayTest, OneThatDiedGivesItsPlaceToANewOne) {
  auto const first = client().start_gateway(1);
  ASSERT_TRUE(first);
  ::kill(first->pid, SIGKILL);
  ASSERT_TRUE(eventually([&] { return !client().attach_gateway(1); }));
  auto const second = client().start_gateway(1);
  ASSERT_TRUE(second) << second.error().message() << second.error().detail();
  EXPECT_NE(second->pid, first->pid);
  EXPECT_THAT(ask(*second, start_command()), HasSubstr("BEGIN CERTIFICATE"));
}

TEST_F(GatewayTest, IsCollectedWheneverItDied) {
  std::vector<std::int32_t> pids;
  for (int i = 0; i < 100; ++i) {
    auto const gateway = client().start_gateway(1);
    ASSERT_TRUE(gateway) << gateway.error().message() << gateway.error().detail();
    pids.push_back(gateway->pid);
    ASSERT_TRUE(client().end_gateway(1));
  }
  // A process that nobody waited for would be there for as long as hostd.
  auto const left = std::ranges::count_if(pids, [](auto pid) { return !status_of(pid).empty(); });
  EXPECT_EQ(left, 0);
}

TEST_F(GatewayTest, GoesWithItsSlot) {
  auto const gateway = client().start_gateway(1);
  ASSERT_TRUE(gateway);
  ASSERT_TRUE(client().remove_slot(1));
  EXPECT_THAT(installation_.holdings(), IsEmpty());
  EXPECT_EQ(client().start_gateway(1).error().code(), base::Code::not_found);
}

}  // namespace
}  // namespace test
