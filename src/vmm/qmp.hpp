#pragma once

#include "async/task.hpp"
#include "vmm/descriptor.hpp"

#include <deque>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <variant>

#include <boost/json/object.hpp>

/// QEMU's control protocol: JSON lines over its monitor socket. A QEMU that a guest took over is a
/// hostile peer: lines, nesting, queue and rate are bounded, and after the first thing that is no
/// QMP the conversation is over for good.
namespace vmm::qmp {

namespace json = boost::json;

struct Greeting {};

struct Event {
  std::string name;
  json::object data;
};

struct Reply {
  std::uint64_t id = 0;  // 0: an answer to nothing we sent with an id
  bool ok = false;
  json::value value;        // when ok
  std::string error_class;  // when not
  std::string error;
};

using Message = std::variant<Greeting, Event, Reply>;

inline constexpr std::size_t line_bytes_max = std::size_t{64} * 1024;
inline constexpr std::size_t queued_max = 256;

/// One line without its end → message. Errors: invalid_argument with what is wrong.
base::Result<Message> parse_line(std::string_view line);

/// {"execute":…,"arguments":…,"id":…} and a line end.
std::string command_line(std::uint64_t id, std::string_view name, json::object arguments);

/// The protocol without a socket: bytes in, messages out.
class Reader {
 public:
  /// Fails, then and ever after, on a line over the limit, on what is no QMP, and when nobody takes
  /// messages.
  base::Result<void> feed(std::string_view bytes);
  /// The next whole message.
  std::optional<Message> next();

 private:
  std::string partial_;
  std::deque<Message> ready_;
  bool broken_ = false;
};

/// Commands and events over a connected monitor. Its owner runs `run()` in a task group and joins
/// it first.
class Client {
 public:
  using OnEvent = std::function<void(Event const&)>;
  Client(boost::asio::any_io_executor executor, Descriptor connection, OnEvent on_event);

  /// Negotiates, then reads until the connection ends. `OnEvent` is called from here.
  boost::asio::awaitable<void> run();

  /// Waits for the negotiation, too. Errors: unavailable (connection over), deadline_exceeded,
  /// internal (QEMU refused; its words in the detail), exhausted (more than 16 commands under way).
  async::Task<json::value> execute(std::string name,
                                   json::object arguments,
                                   base::Deadline deadline);
  /// Gives QEMU the descriptor (borrowed) under a name that later commands call "fd:NAME".
  async::Task<void> pass(std::string name, os::FdRef fd, base::Deadline deadline);
  /// The same for commands that take a path: "/dev/fdset/SET", until remove-fd.
  async::Task<void> pass_as_file(int set, os::FdRef fd, base::Deadline deadline);

  /// True once events arrive: QEMU tells none before the negotiation.
  bool ready() const noexcept { return ready_; }

  void close() noexcept;

 private:
  async::Task<json::value> exchange(std::string name, json::object arguments, int passed = -1);
  void take(Message message);
  void end(std::string why);

  Descriptor connection_;
  OnEvent on_event_;
  Reader reader_;
  std::map<std::uint64_t, std::optional<Reply>> waiting_;
  async::Signal changed_;
  async::Turnstile writing_;
  std::uint64_t last_id_ = 1;  // 1 is the negotiation's
  bool ready_ = false;
  bool over_ = false;
};

}  // namespace vmm::qmp
