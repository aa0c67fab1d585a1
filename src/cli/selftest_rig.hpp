#pragma once

#include "cli/selftest_catalogue.hpp"

#include <sys/types.h>

#include <string>

/// The small internet of `space selftest egress`: a network namespace without a way out, with the
/// servers that controls must reach and attacks must not (selftest_servers.hpp). They write down
/// what arrives, and answer as carelessly as servers do.
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

  /// All that the servers read until now, by connection and by name asked for.
  std::vector<Arrival> arrived() const;

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
  /// Connections of the slot in the kernel's table.
  std::int64_t tracked() const;

 private:
  GuardWitness(std::string slot_netns, std::string output)
      : slot_netns_(std::move(slot_netns)), output_(std::move(output)) {}

  std::string slot_netns_;
  std::string output_;
  pid_t reader_ = 0;
};

}  // namespace cli::selftest
