#include "gateway/resolver.hpp"

#include <cstring>
#include <unordered_map>

#include <ares.h>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <netdb.h>
#include <unistd.h>

namespace gateway {
namespace {

namespace asio = boost::asio;
constexpr std::size_t addresses_max = 32;
constexpr int attempt_timeout_ms = 700;
constexpr int attempts = 3;

struct FreeChannel {
  void operator()(ares_channel channel) const noexcept { ares_destroy(channel); }
};

/// c-ares says which sockets it waits for; asio tells it when they are ready. One-thread:
/// everything runs on the loop.
class AresResolver final : public Resolver {
 public:
  explicit AresResolver(asio::any_io_executor executor) : executor_(executor), timer_(executor) {}

  ~AresResolver() override {
    *alive_ = false;
    channel_.reset();  // ends all queries: their callbacks find `alive_` false
    watched_.clear();
  }

  base::Result<void> begin(std::vector<std::string> const& servers) {
    ares_library_init(ARES_LIB_INIT_ALL);
    ares_options options{};
    options.timeout = attempt_timeout_ms;
    options.tries = attempts;
    options.flags = ARES_FLAG_NOSEARCH | ARES_FLAG_NOALIASES;
    options.sock_state_cb = on_socket;
    options.sock_state_cb_data = this;
    options.lookups = const_cast<char*>("b");  // NOLINT: DNS alone, no hosts file; c-ares copies it
    ares_channel channel = nullptr;
    int const mask = ARES_OPT_TIMEOUTMS | ARES_OPT_TRIES | ARES_OPT_FLAGS | ARES_OPT_SOCK_STATE_CB |
                     ARES_OPT_LOOKUPS;
    if (ares_init_options(&channel, &options, mask) != ARES_SUCCESS)
      return base::fail(base::Code::internal, "start the resolver");
    channel_.reset(channel);
    std::string list;
    for (auto const& server : servers)
      list += (list.empty() ? "" : ",") + server;
    if (int const status = ares_set_servers_ports_csv(channel, list.c_str());
        status != ARES_SUCCESS || servers.empty()) {
      return base::fail(
          base::Code::invalid_argument,
          fmt::format("resolvers: {}", servers.empty() ? "none" : ares_strerror(status)));
    }
    return {};
  }

  async::Task<std::vector<Address>> resolve(domain::HostName name,
                                            base::Deadline deadline) override {
    struct Query {
      explicit Query(asio::any_io_executor const& executor) : done(executor) {}

      async::Signal done;
      int status = -1;
      std::vector<Address> addresses;
      std::shared_ptr<bool> alive;
      std::shared_ptr<Query> self;
    };

    auto query = std::make_shared<Query>(executor_);
    query->alive = alive_;
    query->self = query;
    ares_addrinfo_hints hints{};
    hints.ai_family = AF_UNSPEC;
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = ARES_AI_NOSORT;
    auto const on_answer = [](void* data, int status, int, ares_addrinfo* found) {
      auto* raw = static_cast<Query*>(data);
      auto const keep = std::move(raw->self);
      keep->status = status;
      for (auto const* node = found ? found->nodes : nullptr;
           node && keep->addresses.size() < addresses_max;
           node = node->ai_next) {
        keep->addresses.push_back(address_in(*node));
      }
      if (found) ares_freeaddrinfo(found);
      if (*keep->alive) keep->done.notify_all();
    };
    ares_getaddrinfo(channel_.get(), name.str().c_str(), nullptr, &hints, on_answer, query.get());
    arm_timer();
    auto const ended = co_await async::run_until(deadline, wait_for(query));
    if (ended == async::Ended::cancelled)
      co_return base::fail(base::Code::cancelled, "the caller went away");
    if (query->status == ARES_ENOTFOUND || query->status == ARES_ENODATA) {
      co_return base::fail(base::Code::not_found, "the name has no address");
    }
    if (query->status != ARES_SUCCESS)
      co_return base::fail(base::Code::unavailable, "the name could not be resolved");
    if (query->addresses.empty())
      co_return base::fail(base::Code::not_found, "the name has no address");
    std::vector<Address> ordered;
    for (bool const v4 : {true, false})
      for (auto const& address : query->addresses)
        if (is_ipv4(address) == v4) ordered.push_back(address);
    co_return ordered;
  }

 private:
  template <class Q> static asio::awaitable<void> wait_for(std::shared_ptr<Q> query) {
    while (query->status == -1)
      co_await query->done.wait();
  }

  static Address address_in(ares_addrinfo_node const& node) {
    // SAFETY: ai_family says which address type lies behind the pointer.
    if (node.ai_family == AF_INET) {
      auto const* v4 = reinterpret_cast<sockaddr_in const*>(node.ai_addr);
      return address_of_ipv4(ntohl(v4->sin_addr.s_addr));
    }
    Address out{};
    auto const* v6 = reinterpret_cast<sockaddr_in6 const*>(node.ai_addr);
    std::memcpy(out.data(), &v6->sin6_addr, out.size());
    return out;
  }

  struct Watched {
    explicit Watched(asio::any_io_executor const& executor, int fd) : descriptor(executor, fd) {}

    ~Watched() { descriptor.release(); }  // the socket is c-ares's

    asio::posix::stream_descriptor descriptor;
    bool wants_read = false;
    bool wants_write = false;
    bool reading = false;
    bool writing = false;
  };

  static void on_socket(void* data, ares_socket_t socket, int readable, int writable) {
    static_cast<AresResolver*>(data)->watch(socket, readable != 0, writable != 0);
  }

  void watch(ares_socket_t socket, bool readable, bool writable) {
    if (!readable && !writable) {
      // Before c-ares closes it: its next socket may have the same number, which a later release
      // would take out of the loop.
      auto const found = watched_.find(socket);
      if (found == watched_.end()) return;
      found->second->descriptor.release();
      watched_.erase(found);
      return;
    }
    auto& watched = watched_[socket];
    if (!watched) watched = std::make_shared<Watched>(executor_, socket);
    watched->wants_read = readable;
    watched->wants_write = writable;
    wait_on(watched, socket);
  }

  void wait_on(std::shared_ptr<Watched> const& watched, ares_socket_t socket) {
    auto const alive = alive_;
    if (watched->wants_read && !watched->reading) {
      watched->reading = true;
      watched->descriptor.async_wait(asio::posix::stream_descriptor::wait_read,
                                     [this, alive, watched, socket](auto error) {
                                       watched->reading = false;
                                       if (!*alive || error) return;
                                       ares_process_fd(channel_.get(), socket, ARES_SOCKET_BAD);
                                       again(watched, socket);
                                     });
    }
    if (watched->wants_write && !watched->writing) {
      watched->writing = true;
      watched->descriptor.async_wait(asio::posix::stream_descriptor::wait_write,
                                     [this, alive, watched, socket](auto error) {
                                       watched->writing = false;
                                       if (!*alive || error) return;
                                       ares_process_fd(channel_.get(), ARES_SOCKET_BAD, socket);
                                       again(watched, socket);
                                     });
    }
  }

  void again(std::shared_ptr<Watched> const& watched, ares_socket_t socket) {
    auto const still = watched_.find(socket);
    if (still != watched_.end() && still->second == watched) wait_on(watched, socket);
    arm_timer();
  }

  void arm_timer() {
    timeval longest{1, 0};
    timeval left{};
    auto const* next = ares_timeout(channel_.get(), &longest, &left);
    if (watched_.empty()) return;
    timer_.expires_after(std::chrono::seconds(next->tv_sec) +
                         std::chrono::microseconds(next->tv_usec) + std::chrono::milliseconds(1));
    timer_.async_wait([this, alive = alive_](auto error) {
      if (!*alive || error) return;
      ares_process_fd(channel_.get(), ARES_SOCKET_BAD, ARES_SOCKET_BAD);
      arm_timer();
    });
  }

  asio::any_io_executor executor_;
  asio::steady_timer timer_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::unordered_map<ares_socket_t, std::shared_ptr<Watched>> watched_;
  std::unique_ptr<ares_channeldata, FreeChannel> channel_;
};

}  // namespace

base::Result<std::unique_ptr<Resolver>> make_resolver(asio::any_io_executor executor,
                                                      std::vector<std::string> const& servers) {
  auto resolver = std::make_unique<AresResolver>(std::move(executor));
  if (auto begun = resolver->begin(servers); !begun) return base::passing(begun);
  return std::unique_ptr<Resolver>(std::move(resolver));
}

}  // namespace gateway
