#pragma once

#include "os/fd.hpp"

#include <string>
#include <string_view>
#include <vector>

namespace hostd {

/// One file of a jail: bound read-only at `inside`.
struct JailFile {
  std::string source;
  std::string inside;
};

struct JailViewSpec {
  std::vector<JailFile> files;
  bool kvm = false;            // also /dev/kvm
  bool tun = false;            // also /dev/net/tun
  bool machine = false;        // also an empty directory /machine, for JailSpec::machine_mount
  std::string_view preload{};  // content of jail_preload; empty: no such file
};

/// Where a library lies that is loaded into a jailed program before its own.
inline constexpr char jail_preload[] = "/preload/library.so";

/// The file system as a jailed program sees it: a mount namespace that holds these files,
/// /dev/null, /dev/zero, /dev/urandom, and nothing that can be written. Made once; each machine
/// gets a copy of the namespace, which costs no path look-up and leaves no mount in ours.
///
/// `scratch`: an existing directory of ours to build in (nothing is left there).
base::Result<os::Fd> make_jail_view(JailViewSpec const& spec, std::string const& scratch);

/// The program, what the dynamic linker says it loads (asked of the linker, not guessed), and the
/// linker itself.
base::Result<std::vector<JailFile>> files_of_program(std::string const& program);

/// All files of Debian's QEMU for the machine `microvm`: program, libraries, emulator module,
/// firmware.
base::Result<std::vector<JailFile>> files_of_qemu();

}  // namespace hostd
