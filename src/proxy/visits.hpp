#pragma once

#include "async/alarm.hpp"
#include "net/byte_stream.hpp"
#include "wire/route.hpp"

#include <list>
#include <set>
#include <unordered_map>

namespace proxy {

namespace asio = boost::asio;

class Visits;

/// One visitor's connection to one sandbox, from before its guest connection is opened until that
/// is closed. A sandbox that ends cuts all of its visits: pending and idle ones too, so that no
/// socket of ours stays in its network.
class Visit {
 public:
  ~Visit();
  Visit(Visit const&) = delete;
  Visit& operator=(Visit const&) = delete;

  std::string const& sandbox() const noexcept { return sandbox_; }

  /// What it was let in with: another life or another token ends it at the next re-check.
  void admit(wire::Route const& route);

  std::uint64_t epoch() const noexcept { return epoch_; }

  std::string const& token_sha256() const noexcept { return token_sha256_; }

  /// Streams that cut() closes; null to forget one. The visitor's is closed only when the guest's
  /// end did not end the request within a moment (its reader is stuck).
  void watch(net::ByteStream* guest, net::ByteStream* visitor) noexcept;

  bool is_cut() const noexcept { return cut_; }

  /// Ends when it is cut: for what has no stream yet that could be closed.
  asio::awaitable<void> wait_cut();

 private:
  friend class Visits;
  Visit(Visits& owner, std::string sandbox, asio::any_io_executor executor);
  void cut();

  Visits& owner_;
  std::string sandbox_;
  std::uint64_t epoch_ = 0;
  std::string token_sha256_;
  net::ByteStream* guest_ = nullptr;
  net::ByteStream* visitor_ = nullptr;
  bool cut_ = false;
  async::Signal cut_told_;
  async::Alarm patience_;
  std::list<Visit*>::iterator place_;
};

/// All visits of this process; must outlive them.
class Visits {
 public:
  Visits(asio::any_io_executor executor, std::size_t per_sandbox_max)
      : executor_(std::move(executor)), per_sandbox_max_(per_sandbox_max) {}

  /// Null when the sandbox has as many as it may.
  std::unique_ptr<Visit> enter(std::string const& sandbox);
  /// `life` 0: all of them. Else only what was let in by that life of it or an earlier one: whoever
  /// waits for the next one stays.
  void cut(std::string const& sandbox, std::uint64_t life = 0);
  /// Who has visitors, or had some since the last time.
  std::vector<std::string> take_used();

  void note_used(std::string const& sandbox) { used_.insert(sandbox); }

  /// Cuts what was let in by another life of the sandbox or by another token, or all when it does
  /// not run.
  void check(std::string const& sandbox, std::optional<wire::Route> const& now);
  std::vector<std::string> sandboxes() const;
  std::size_t count(std::string const& sandbox) const;

 private:
  friend class Visit;
  asio::any_io_executor executor_;
  std::size_t per_sandbox_max_;
  std::unordered_map<std::string, std::list<Visit*>> open_;
  std::set<std::string> used_;
};

}  // namespace proxy
