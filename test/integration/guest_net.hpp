#pragma once

#include "os/fd.hpp"

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <thread>

namespace test {

os::Fd make_netns();
/// Runs a command in it; throws when it fails. For fixed words only.
void run_in(os::FdRef netns, std::string const& command);

/// A guest without a machine: a network namespace whose link is a slot's tap, frame by frame. Its
/// programs are threads of the test that enter it.
class GuestNet {
 public:
  /// `tap`: of the slot.
  explicit GuestNet(os::Fd tap);
  ~GuestNet();
  GuestNet(GuestNet const&) = delete;
  GuestNet& operator=(GuestNet const&) = delete;

  /// A connected, blocking socket with limits of five seconds; empty when refused or silent.
  os::Fd dial(std::string const& address, std::uint16_t port) const;
  /// A non-blocking socket whose connect() has begun; empty when refused at once.
  os::Fd begin_dial(std::string const& address, std::uint16_t port) const;
  /// Asks the DNS front; "" for anything but an address.
  std::string resolve(std::string const& name) const;
  /// Sends, and reads what comes until the end or `until` is in it.
  static std::string talk(os::Fd const& socket,
                          std::string const& text,
                          std::string const& until = "");

 private:
  void carry();

  os::Fd netns_ = make_netns();
  os::Fd slot_;
  os::Fd own_;
  std::atomic<bool> ending_ = false;
  std::thread carrier_;
};

/// What is wrong with the world's name server.
enum class Names : std::uint8_t { right, failing, inside, gone };

/// The world behind the gateways: a namespace with a DNS server (every name is 203.0.113.10) and an
/// echo at any address of 203.0.113.0/24, TCP ports 7 and 80. Counts what arrives.
class SmallInternet {
 public:
  SmallInternet();
  ~SmallInternet();
  SmallInternet(SmallInternet const&) = delete;
  SmallInternet& operator=(SmallInternet const&) = delete;

  /// A file below /run, for Config::uplink.
  std::string const& path() const { return path_; }

  /// Bytes that came to the echo so far.
  std::uint64_t arrived() const { return arrived_; }

  std::uint64_t questions() const { return questions_; }

  /// From the next question on. Names that lead `inside` are 10.66.0.1, an address that is here.
  void set_names(Names names) { names_ = names; }

 private:
  void serve();

  os::Fd netns_ = make_netns();
  std::string path_;
  std::atomic<std::uint64_t> arrived_ = 0;
  std::atomic<std::uint64_t> questions_ = 0;
  std::atomic<Names> names_ = Names::right;
  std::atomic<bool> ending_ = false;
  std::thread server_;
};

}  // namespace test
