#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include <boost/json/object.hpp>

/// For tests: a server that speaks like Firecracker 1.17 and refuses what the real one refuses:
/// paths, methods, unknown, missing and ill-typed fields, the order of calls, changes after the
/// start. What depends on the host (files, memory, KVM) it cannot know; `fail_next` says it.
/// firecracker_fake_test.cpp; held against recorded exchanges with the real one by
/// firecracker_replay_test.cpp.
namespace vmm::firecracker {

namespace json = boost::json;

class Fake {
 public:
  enum class State { not_started, running, paused, gone };

  struct Answer {
    int status = 204;
    std::string body;
  };

  /// The rules: one request, one answer.
  Answer answer(std::string_view method, std::string_view path, std::string_view body);

  /// Bytes of a connection in, bytes out; keeps what is not a whole request yet.
  std::string take(std::string_view bytes);

  /// What the next call gets that the rules would accept: the host's word.
  void fail_next(int status, std::string body) { host_says_ = Answer{status, std::move(body)}; }

  State state() const noexcept { return state_; }

  /// The devices that a loaded snapshot has.
  std::set<std::string> snapshot_drives{"d0"};
  std::set<std::string> snapshot_links{"n0"};
  std::string version = "1.17.0-dev";
  std::string id = "machine";

  /// What was accepted: "PUT /machine-config", and the last body of each.
  std::vector<std::string> accepted;
  std::map<std::string, json::object> bodies;
  /// Why the last request was refused, or "" when it was not.
  std::string refused;

 private:
  struct Call;
  std::optional<Answer> check(Call const& call) const;
  std::optional<Answer> check_time(Call const& call) const;
  std::optional<Answer> check_sense(Call const& call) const;
  std::optional<Answer> check_drive(Call const& call) const;
  std::optional<Answer> check_link(Call const& call) const;
  std::optional<Answer> check_snapshot(Call const& call) const;
  Answer carry_out(Call const& call);
  Answer read(Call const& call) const;

  State state_ = State::not_started;
  std::optional<Answer> host_says_;
  std::string pending_;
  std::map<std::string, bool> drives_;         // id → is it the root
  std::map<std::string, json::object> links_;  // id → body
  std::set<std::string> seen_;                 // first segments that were configured
};

}  // namespace vmm::firecracker
