#pragma once

#include "base/result.hpp"

#include <sys/types.h>

#include <string>

/// The small internet of `space selftest egress`: a network namespace without a way out, with the
/// servers that controls must reach and attacks must not. They do one thing: write down what
/// arrives.
namespace cli::selftest {

class EgressRig {
 public:
  /// `directory` is the caller's, empty, readable by everybody. Needs root.
  static base::Result<EgressRig> start(std::string directory);
  EgressRig(EgressRig&& from) noexcept;
  EgressRig& operator=(EgressRig&&) = delete;
  ~EgressRig();

  std::string const& name() const noexcept { return name_; }

  std::string uplink() const { return "/run/netns/" + name_; }

  std::string authority() const { return directory_ + "/ca.pem"; }

  static constexpr char resolver[] = "203.0.113.53";
  static constexpr char network[] = "203.0.113.0/24";

  /// Did any server read it?
  bool arrived(std::string const& token) const;

 private:
  EgressRig(std::string directory, std::string name)
      : directory_(std::move(directory)), name_(std::move(name)) {}

  std::string directory_;
  std::string name_;
  pid_t servers_ = 0;
};

/// Sees the frames that passed the first rules of a slot: a second table behind them copies each to
/// a device where they are read.
class GuardWitness {
 public:
  static base::Result<GuardWitness> start(std::string const& slot_netns, std::string output);
  GuardWitness(GuardWitness&& from) noexcept;
  GuardWitness& operator=(GuardWitness&&) = delete;
  ~GuardWitness();

  /// Frames with this token.
  std::size_t passed(std::string const& token) const;

 private:
  explicit GuardWitness(std::string output) : output_(std::move(output)) {}

  std::string output_;
  pid_t reader_ = 0;
};

}  // namespace cli::selftest
