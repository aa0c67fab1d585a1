#include "proxy/visits.hpp"

namespace proxy {
namespace {

constexpr std::chrono::milliseconds stuck_reader_patience{500};

}  // namespace

Visit::Visit(Visits& owner, std::string sandbox, asio::any_io_executor executor)
    : owner_(owner), sandbox_(std::move(sandbox)), cut_told_(executor), patience_(executor, [this] {
        if (visitor_ != nullptr) visitor_->close();
      }) {
  auto& list = owner_.open_[sandbox_];
  place_ = list.insert(list.end(), this);
}

Visit::~Visit() {
  auto const entry = owner_.open_.find(sandbox_);
  entry->second.erase(place_);
  if (entry->second.empty()) owner_.open_.erase(entry);
}

void Visit::admit(wire::Route const& route) {
  if (route.state == "running") owner_.note_used(sandbox_);
  epoch_ = route.epoch;
  token_sha256_ = route.access_token_sha256;
}

void Visit::watch(net::ByteStream* guest, net::ByteStream* visitor) noexcept {
  guest_ = guest;
  visitor_ = visitor;
}

void Visit::cut() {
  if (cut_) return;
  cut_ = true;
  cut_told_.notify_all();
  if (guest_ != nullptr) guest_->close();
  patience_.set(base::system_clock().in(stuck_reader_patience));
}

asio::awaitable<void> Visit::wait_cut() {
  while (!cut_)
    co_await cut_told_.wait();
}

std::unique_ptr<Visit> Visits::enter(std::string const& sandbox) {
  if (count(sandbox) >= per_sandbox_max_) return nullptr;
  return std::unique_ptr<Visit>(
      new Visit(*this, sandbox, executor_));  // its constructor is ours alone
}

void Visits::cut(std::string const& sandbox, std::uint64_t life) {
  auto const entry = open_.find(sandbox);
  if (entry == open_.end()) return;
  for (auto* visit : entry->second) {
    bool const later = life > 0 && (visit->epoch() > life || visit->epoch() == 0);
    if (!later) visit->cut();
  }
}

std::vector<std::string> Visits::take_used() {
  auto used = std::exchange(used_, {});
  for (auto const& [sandbox, list] : open_)
    used.insert(sandbox);
  return {used.begin(), used.end()};
}

void Visits::check(std::string const& sandbox, std::optional<wire::Route> const& now) {
  auto const entry = open_.find(sandbox);
  if (entry == open_.end()) return;
  bool const runs = now && now->state == "running";
  for (auto* visit : entry->second) {
    // Epoch 0: not let in yet, so it will see the new state by itself.
    bool const same =
        runs && (visit->epoch() == 0 || (visit->epoch() == now->epoch &&
                                         visit->token_sha256() == now->access_token_sha256));
    if (!same) visit->cut();
  }
}

std::vector<std::string> Visits::sandboxes() const {
  std::vector<std::string> out;
  out.reserve(open_.size());
  for (auto const& [sandbox, list] : open_)
    out.push_back(sandbox);
  return out;
}

std::size_t Visits::count(std::string const& sandbox) const {
  auto const entry = open_.find(sandbox);
  return entry == open_.end() ? 0 : entry->second.size();
}

}  // namespace proxy
