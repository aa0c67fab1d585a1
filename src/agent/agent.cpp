#include "agent/agent.hpp"

#include "agent/files.hpp"
#include "agent/filesystem.hpp"

namespace agent {
namespace {

Context context_of(Agent::Options const& options) {
  Context out;
  out.etc_dir = options.etc_dir;
  out.owns_machine = options.owns_machine;
  return out;
}

/// A guest has little memory: fewer connections than a host's services, and no head larger than a
/// URL needs.
http::Limits limits() {
  http::Limits out;
  out.connections_max = 1000;
  return out;
}

}  // namespace

struct Agent::Files {
  Files(asio::any_io_executor executor, Context& context)
      : filesystem(executor, context), handler(executor, context) {}

  FilesystemService filesystem;
  FilesHandler handler;
};

Agent::Agent(asio::any_io_executor executor, Machine& machine, Options options)
    : context_(context_of(options)),
      reaper_(executor, options.orphans),
      processes_(executor, context_, reaper_, std::move(options.processes)),
      files_(std::make_unique<Files>(executor, context_)),
      init_(context_, machine),
      router_(std::make_unique<Router>(context_,
                                       std::vector<RpcService*>{&processes_, &files_->filesystem},
                                       files_->handler,
                                       init_)),
      server_(std::make_unique<http::Server>(executor, *router_, limits())),
      tasks_(executor) {
  tasks_.spawn("reaper", reaper_.run());
  if (!options.loopback) return;
  forwarder_ = std::make_unique<LoopbackForwarder>(executor, *std::move(options.loopback));
  forwarder_->start();
}

Agent::~Agent() = default;

asio::awaitable<void> Agent::close() {
  co_await server_->close(std::chrono::milliseconds(0));
  if (forwarder_) co_await forwarder_->close();
  co_await files_->filesystem.close();
  co_await processes_.close();
  tasks_.cancel();
  co_await tasks_.join();
}

}  // namespace agent
