#pragma once

#include "async/task.hpp"
#include "wire/worker.hpp"

#include <string>
#include <vector>

namespace worker {

/// Credentials that servers sent back to guests of this host, from the moment that a gateway says
/// so until the API has stored it and brought it to every sandbox: told in every report, in a file
/// for the worker after us, and meanwhile leased to nobody here. Used on the loop alone.
class Reflections {
 public:
  Reflections(boost::asio::any_io_executor executor, std::string path);

  /// Reads what the worker before us left. A list that cannot be read is an error: nobody would
  /// know any more what must not be used.
  async::Task<void> open();

  /// Known from now on; durable after keep(). One of the same credential and version is replaced,
  /// and of too many the oldest of the sandbox that has most is forgotten.
  void note(wire::Reflected reflected);
  async::Task<void> keep();

  /// The API knows this one.
  async::Task<void> taken(wire::Reflected reflected);

  bool holds(std::string const& credential, std::uint32_t version) const noexcept;

  std::vector<wire::Reflected> const& all() const noexcept { return all_; }

  /// Until one is taken.
  boost::asio::awaitable<void> wait_taken() { return taken_.wait(); }

 private:
  void forget_one();

  std::string path_;
  std::vector<wire::Reflected> all_;
  bool dirty_ = false;
  async::Turnstile writing_;
  async::Signal taken_;
};

}  // namespace worker
