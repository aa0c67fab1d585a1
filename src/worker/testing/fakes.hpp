#pragma once

#include "async/task.hpp"
#include "hostd/protocol.hpp"
#include "http/server.hpp"
#include "os/fd.hpp"
#include "wire/config.hpp"
#include "wire/worker.hpp"
#include "worker/worker.hpp"

#include <atomic>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>

/// Stand-ins at the worker's edges, with real sockets and real processes: space-hostd without
/// privileges, an agent without a guest.
namespace worker::testing {

/// A directory that goes away with the object.
class TempDir {
 public:
  TempDir();
  ~TempDir();
  TempDir(TempDir const&) = delete;
  TempDir& operator=(TempDir const&) = delete;

  std::string const& path() const noexcept { return path_; }

 private:
  std::string path_;
};

/// Speaks src/hostd/protocol.hpp on a thread of its own. A "machine" is a process that waits; a
/// "slot" is a number; every dialled connection goes to one port of the loopback.
class FakeHostd {
 public:
  explicit FakeHostd(std::string socket_path);
  ~FakeHostd();

  /// As kill -9 and a start of hostd: machines and slots stay.
  void go_down();
  void come_up();

  /// Port on 127.0.0.1 that plays the guests' agent; 0: nobody there, connections are refused.
  std::atomic<std::uint16_t> agent_port{0};
  std::atomic<bool> say_oom{false};
  std::atomic<int> fail_make{0};  // so many make_slot fail
  std::atomic<int> fail_remove{0};
  std::atomic<int> fail_end{0};  // so many end_vmm fail
  std::atomic<int> features{0};
  std::atomic<int> starts{0};
  std::atomic<std::size_t> gateways{0};     // that were started
  std::atomic<int> altered_slot{-1};        // its rules are not ours any more
  std::atomic<int> uplink_trouble{0};       // check_uplink fails so many times
  std::atomic<bool> altered_uplink{false};  // once
  std::atomic<std::uint64_t> drops{0};      // each guard dropped so many frames of another sender
  /// Machines answer on their control socket: commands are obeyed, a capture writes "STATE".
  std::atomic<bool> speak_qmp{false};
  std::atomic<bool> refuse_restore{false};  // as for a state that does not fit: the machine ends
  std::atomic<int> stops{0};                // times a machine was told to stop
  std::size_t halted() const;               // machines that stand still

  /// What a machine finds at this place of its guest's memory: each has the memory that there was
  /// when it started.
  static constexpr std::size_t memory_bytes = std::size_t{512} << 20;
  void write_memory(std::size_t at, std::string_view text);

  /// As a power cut: no machine, no slot, no memory of them.
  void forget_all();
  void kill_machine(std::uint32_t slot, int signal);
  /// What the guest writes to its console.
  void say_on_console(std::uint32_t slot, std::string_view text);
  void say_on_qmp(std::uint32_t slot, std::string_view text);
  std::size_t slots() const;     // that exist
  std::size_t machines() const;  // that run
  /// A slot with a machine that no journal knows.
  void plant(std::uint32_t slot, std::string const& sandbox, std::uint64_t epoch);

 private:
  struct Slot {
    hostd::SlotState state = hostd::SlotState::empty;
    std::string sandbox;
    std::uint64_t epoch = 0;
    int pid = 0;
    int status = -1;
    os::Fd qmp;  // the machine's ends
    std::string heard;
    os::Fd passed;  // the latest descriptor that came over it
    bool halted = false;
    os::Fd console;
  };

  struct Answer {
    hostd::Reply reply;
    std::vector<os::Fd> fds;
  };

  void serve(std::stop_token stop);
  Answer answer(hostd::Request const& request);
  Answer on_slot(hostd::Request const& request, std::map<std::uint32_t, Slot>::iterator slot);
  Answer connect_machine(Slot& slot, bool with_errors);
  Answer end(Slot& slot);
  Answer dial() const;
  void start_machine(Slot& slot);
  void talk(Slot& slot);
  void obey(Slot& slot, std::string const& line);
  static void notice_end(Slot& slot);
  static Answer open_memory(Slot const& slot);

  std::string path_;
  mutable std::mutex mutex_;
  std::map<std::uint32_t, Slot> slots_;
  char* memory_ = nullptr;  // machines are born with a copy of it
  std::optional<os::Fd> listener_;
  std::jthread thread_;
};

/// Plays the agent's port on the loop of the test.
class FakeAgent final : public http::Handler {
 public:
  enum class Mood : std::uint8_t {
    honest,
    wrong_nonce,  // answers with a nonce of its own
    refuses,      // 400 with a text full of control characters
    endless,      // an answer without end
    silent,       // takes connections and says nothing
    garbage,      // no HTTP at all
  };
  explicit FakeAgent(boost::asio::any_io_executor executor);
  boost::asio::awaitable<void> close();

  std::uint16_t port() const noexcept { return port_; }

  Mood mood = Mood::honest;
  std::optional<wire::AgentInit> last_init;
  int inits = 0;
  int exercises = 0;
  int connections = 0;

  /// Closes every connection that is open now.
  void hang_up();

  boost::asio::awaitable<void> handle(http::Request& request,
                                      http::ResponseWriter& response) override;

 private:
  boost::asio::awaitable<void> accept();
  boost::asio::awaitable<void> serve(net::Stream connection);

  std::unique_ptr<net::Listener> listener_;
  std::uint16_t port_ = 0;
  std::set<net::ByteStream*> open_;
  http::Server server_;
  async::TaskGroup tasks_;
};

/// Directories with a template build "b1" of 1 MiB and a pretended guest kernel.
struct Rig {
  Rig();
  TempDir dir;
  wire::Config config;
  FakeHostd hostd;

  static wire::StartSandbox request();
  /// Paths below pool/sandboxes.
  std::size_t disks() const;
};

wire::Config config_in(std::string const& dir);

/// Runs this program again as a victim: its disabled test `filter`, in an installation in `dir`,
/// to be killed at a fault point. Its wait status. A fresh process, because ours has threads.
boost::asio::awaitable<int> run_victim(std::string filter,
                                       std::string dir,
                                       std::string point,
                                       wire::StartSandbox request);

}  // namespace worker::testing
