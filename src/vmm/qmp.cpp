#include "vmm/qmp.hpp"

#include "base/log.hpp"
#include "wire/codec.hpp"

namespace vmm::qmp {
namespace {

namespace asio = boost::asio;

constexpr std::uint64_t negotiation_id = 1;
constexpr std::size_t commands_max = 16;
// QEMU limits its own event rates; what is faster is a flood.
constexpr std::size_t bytes_per_s_max = std::size_t{256} * 1024;

std::string text_at(json::object const& object, std::string_view key) {
  auto const* value = object.if_contains(key);
  auto const* text = value ? value->if_string() : nullptr;
  return text ? std::string(text->data(), std::min<std::size_t>(text->size(), 1024))
              : std::string();
}

std::uint64_t id_of(json::object const& object) {
  auto const* id = object.if_contains("id");
  if (!id) return 0;
  if (auto const* u = id->if_uint64()) return *u;
  auto const* i = id->if_int64();
  return i && *i > 0 ? static_cast<std::uint64_t>(*i) : 0;
}

}  // namespace

base::Result<Message> parse_line(std::string_view line) {
  auto parsed = wire::parse_json(line, line_bytes_max);
  if (!parsed) return base::passing(parsed);
  auto* object = parsed->if_object();
  if (!object) return base::fail(base::Code::invalid_argument, "not a JSON object");
  if (auto* value = object->if_contains("return")) {
    return Message(Reply{id_of(*object), true, std::move(*value), {}, {}});
  }
  if (auto const* error = object->if_contains("error")) {
    auto const* what = error->if_object();
    if (!what) return base::fail(base::Code::invalid_argument, "an error that is no object");
    return Message(
        Reply{id_of(*object), false, {}, text_at(*what, "class"), text_at(*what, "desc")});
  }
  if (object->contains("event")) {
    Event event{text_at(*object, "event"), {}};
    auto* data = object->if_contains("data");
    if (auto* fields = data ? data->if_object() : nullptr) event.data = std::move(*fields);
    return Message(std::move(event));
  }
  if (object->contains("QMP")) return Message(Greeting{});
  return base::fail(base::Code::invalid_argument, "neither greeting, event nor reply");
}

std::string command_line(std::uint64_t id, std::string_view name, json::object arguments) {
  json::object command{{"execute", name}, {"id", id}};
  if (!arguments.empty()) command["arguments"] = std::move(arguments);
  return wire::to_text(command) + "\n";
}

base::Result<void> Reader::feed(std::string_view bytes) {
  if (broken_) return base::fail(base::Code::unavailable, "the conversation is over");
  broken_ = true;  // until the end of this function
  for (std::size_t end = 0; (end = bytes.find('\n')) != std::string_view::npos;) {
    if (partial_.size() + end > line_bytes_max)
      return base::fail(base::Code::too_large, "a line over its limit");
    partial_.append(bytes.substr(0, end));
    bytes.remove_prefix(end + 1);
    if (!partial_.empty() && partial_.back() == '\r') partial_.pop_back();
    auto const line = std::exchange(partial_, {});
    if (line.empty()) continue;
    auto message = parse_line(line);
    if (!message) return base::passing(message);
    if (ready_.size() == queued_max)
      return base::fail(base::Code::exhausted, "too many messages at once");
    ready_.push_back(std::move(*message));
  }
  if (partial_.size() + bytes.size() > line_bytes_max)
    return base::fail(base::Code::too_large, "a line over its limit");
  partial_.append(bytes);
  broken_ = false;
  return {};
}

std::optional<Message> Reader::next() {
  if (ready_.empty()) return std::nullopt;
  auto message = std::move(ready_.front());
  ready_.pop_front();
  return message;
}

Client::Client(asio::any_io_executor executor, Descriptor connection, OnEvent on_event)
    : connection_(std::move(connection)),
      on_event_(std::move(on_event)),
      changed_(executor),
      writing_(executor) {}

asio::awaitable<void> Client::run() {
  // Sent before the greeting is there: QEMU reads it when it is ready, and a connection that was
  // negotiated before answers with an error that means the same.
  auto const sent =
      co_await connection_.write_all(command_line(negotiation_id, "qmp_capabilities", {}));
  if (!sent) co_return end(sent.error().message());
  Pace pace(bytes_per_s_max);
  std::array<char, 4096> buffer;
  for (;;) {
    auto const got = co_await connection_.read_some(buffer);
    if (!got || *got == 0) co_return end("the control socket was closed");
    auto fed = reader_.feed(std::string_view(buffer.data(), *got));
    while (auto message = reader_.next())
      take(std::move(*message));
    if (!fed) {
      base::log::warn("qmp_broken", {{"what", fed.error().message()}});
      connection_.close();
      co_return end(fed.error().message());
    }
    co_await pace.took(*got);
  }
}

void Client::take(Message message) {
  if (auto const* event = std::get_if<Event>(&message)) return on_event_(*event);
  auto* reply = std::get_if<Reply>(&message);
  if (!reply) return;
  if (reply->id == negotiation_id) {
    ready_ = true;
  } else if (auto const found = waiting_.find(reply->id); found != waiting_.end()) {
    found->second = std::move(*reply);
  }
  changed_.notify_all();
}

void Client::end(std::string why) {
  if (!over_) base::log::debug("qmp_ended", {{"why", why}});
  over_ = true;
  changed_.notify_all();
}

async::Task<json::value> Client::exchange(std::string name, json::object arguments, int passed) {
  while (!ready_ && !over_)
    co_await changed_.wait();
  auto const id = ++last_id_;
  if (waiting_.size() >= commands_max)
    co_return base::fail(base::Code::exhausted, "too many commands under way");
  waiting_.emplace(id, std::nullopt);
  // Forgets the command however this ends, so that a late reply finds nobody.
  auto forget = std::shared_ptr<void>(nullptr, [this, id](void*) { waiting_.erase(id); });
  {
    auto const turn = co_await writing_.enter();
    if (over_)
      co_return base::fail(base::Code::unavailable,
                           "the virtual machine's control socket is closed");
    auto line = command_line(id, name, std::move(arguments));
    base::Result<void> sent;
    if (passed >= 0) {
      sent = co_await connection_.write_all(std::move(line), os::FdRef(passed));
    } else {
      sent = co_await connection_.write_all(std::move(line));
    }
    if (!sent)
      co_return base::fail(base::Code::unavailable,
                           "the virtual machine's control socket is closed");
  }
  while (!waiting_[id] && !over_)
    co_await changed_.wait();
  if (!waiting_[id])
    co_return base::fail(base::Code::unavailable, "the virtual machine's control socket is closed");
  auto reply = std::move(*waiting_[id]);
  if (reply.ok) co_return std::move(reply.value);
  co_return base::fail(base::Code::internal,
                       "the virtual machine refused " + name,
                       reply.error_class + ": " + reply.error);
}

async::Task<json::value> Client::execute(std::string name,
                                         json::object arguments,
                                         base::Deadline deadline) {
  return async::with_deadline(deadline, exchange(std::move(name), std::move(arguments)));
}

async::Task<void> Client::pass(std::string name, os::FdRef fd, base::Deadline deadline) {
  auto const done = co_await async::with_deadline(
      deadline, exchange("getfd", {{"fdname", std::move(name)}}, fd.get()));
  if (!done) co_return std::unexpected(done.error());
  co_return base::Result<void>();
}

async::Task<void> Client::pass_as_file(int set, os::FdRef fd, base::Deadline deadline) {
  auto const done =
      co_await async::with_deadline(deadline, exchange("add-fd", {{"fdset-id", set}}, fd.get()));
  if (!done) co_return std::unexpected(done.error());
  co_return base::Result<void>();
}

void Client::close() noexcept {
  connection_.close();
}

}  // namespace vmm::qmp
