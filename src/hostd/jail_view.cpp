#include "hostd/jail_view.hpp"

#include "vmm/qemu_command.hpp"

#include <linux/magic.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>

#include <cerrno>
#include <csignal>
#include <sstream>

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

namespace hostd {
namespace {

constexpr char linker[] = "/lib64/ld-linux-x86-64.so.2";

/// Runs in the child: a failed step says so on `report` and ends it.
class Builder {
 public:
  explicit Builder(int report) : report_(report) {}

  void must(bool good, char const* step) const {
    if (good) return;
    auto const text = fmt::format("{} {}", errno, step);
    static_cast<void>(::write(report_, text.data(), text.size()));
    ::_exit(1);
  }

  void make_parents(std::string const& path) const {
    for (auto at = path.find('/', 1); at != std::string::npos; at = path.find('/', at + 1)) {
      must(::mkdir(path.substr(0, at).c_str(), 0755) == 0 || errno == EEXIST,
           "make a directory of a jail");
    }
  }

  void bind(JailFile const& file) const {
    auto const target = "." + file.inside;
    make_parents(target);
    os::Fd const made(::open(target.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644));
    must(static_cast<bool>(made), "make a file of a jail");
    must(::mount(file.source.c_str(), target.c_str(), nullptr, MS_BIND, nullptr) == 0,
         "bind a file of a jail");
    must(::mount(nullptr,
                 target.c_str(),
                 nullptr,
                 MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV,
                 nullptr) == 0,
         "protect a file of a jail");
  }

  /// In a file system of its own: the root of a jail executes nothing.
  void preload(std::string_view content) const {
    must(::mkdir("./preload", 0755) == 0, "make a directory of a jail");
    must(::mount("jail", "./preload", "tmpfs", MS_NOSUID | MS_NODEV, "size=256k,mode=755") == 0,
         "mount the library of a jail");
    auto const path = std::string(".") + jail_preload;
    os::Fd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0444));
    must(static_cast<bool>(file), "make the library of a jail");
    auto const written = ::write(file.get(), content.data(), content.size());
    must(written >= 0 && static_cast<std::size_t>(written) == content.size(),
         "write the library of a jail");
    file.reset();  // nothing becomes read-only under an open writer
    must(::mount(nullptr,
                 "./preload",
                 nullptr,
                 MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV,
                 nullptr) == 0,
         "protect the library of a jail");
  }

  void device(char const* name, unsigned major, unsigned minor) const {
    auto const path = std::string("./dev/") + name;
    must(::mknod(path.c_str(), S_IFCHR | 0666, makedev(major, minor)) == 0,
         "make a device of a jail");
    must(::chmod(path.c_str(), 0666) == 0, "open a device of a jail");
  }

 private:
  int report_;
};

void build(JailViewSpec const& spec, std::string const& scratch, Builder const& builder) {
  builder.must(::unshare(CLONE_NEWNS) == 0, "make a mount namespace");
  builder.must(::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0,
               "keep mounts private");
  builder.must(
      ::mount(
          "jail", scratch.c_str(), "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, "size=1m,mode=755") ==
          0,
      "mount the root of a jail");
  builder.must(::chdir(scratch.c_str()) == 0, "enter a jail");
  ::umask(022);
  for (auto const& file : spec.files)
    builder.bind(file);
  if (!spec.preload.empty()) builder.preload(spec.preload);
  if (spec.machine) builder.must(::mkdir("./machine", 0755) == 0, "make a directory of a jail");
  builder.must(::mkdir("./dev", 0755) == 0, "make a directory of a jail");
  builder.must(::mount("jail", "./dev", "tmpfs", MS_NOSUID | MS_NOEXEC, "size=64k,mode=755") == 0,
               "mount devices");
  builder.device("null", 1, 3);
  builder.device("zero", 1, 5);
  builder.device("urandom", 1, 9);
  if (spec.kvm) builder.device("kvm", 10, 232);
  if (spec.tun) {
    builder.must(::mkdir("./dev/net", 0755) == 0, "make a directory of a jail");
    builder.device("net/tun", 10, 200);
  }
  builder.must(::mount(nullptr,
                       "./dev",
                       nullptr,
                       MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NOEXEC,
                       nullptr) == 0,
               "protect devices");
  builder.must(::mount(nullptr,
                       ".",
                       nullptr,
                       MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC,
                       nullptr) == 0,
               "protect the root of a jail");
  // The old root ends up on top of the new one and is taken away: the host's tree is out of reach.
  builder.must(::syscall(SYS_pivot_root, ".", ".") == 0, "change the root of a jail");
  builder.must(::umount2(".", MNT_DETACH) == 0, "let go of the host's files");
}

struct Pipe {
  os::Fd read;
  os::Fd write;
};

base::Result<Pipe> make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return base::fail_errno("make a pipe");
  return Pipe{.read = os::Fd(ends[0]), .write = os::Fd(ends[1])};
}

std::string read_all(os::Fd const& from) {
  std::string text;
  std::array<char, 4096> part{};
  for (;;) {
    auto const got = ::read(from.get(), part.data(), part.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0 || text.size() > 1U << 20U) return text;
    text.append(part.data(), static_cast<std::size_t>(got));
  }
}

}  // namespace

base::Result<os::Fd> make_jail_view(JailViewSpec const& spec, std::string const& scratch) {
  auto report = make_pipe();
  if (!report) return base::passing(report);
  pid_t const child = ::fork();
  if (child < 0) return base::fail_errno("start the builder of a jail");
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    build(spec, scratch, Builder(report->write.get()));
    static_cast<void>(::write(report->write.get(), "ok", 2));
    for (;;)
      ::pause();  // until the parent has hold of the namespace
  }
  report->write.reset();
  std::array<char, 256> answer{};
  auto const got = ::read(report->read.get(), answer.data(), answer.size() - 1);
  std::string const said(answer.data(), got > 0 ? static_cast<std::size_t>(got) : 0);
  os::Fd view;
  if (said == "ok")
    view = os::Fd(::open(fmt::format("/proc/{}/ns/mnt", child).c_str(), O_RDONLY | O_CLOEXEC));
  ::kill(child, SIGKILL);
  while (::waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
  }
  if (view) return view;
  auto const space = said.find(' ');
  if (space == std::string::npos)
    return base::fail(base::Code::internal, "build the view of a jail");
  return base::fail_errno(std::atoi(said.c_str()), said.substr(space + 1));  // NOLINT(cert-err34-c)
}

base::Result<std::vector<JailFile>> files_of_program(std::string const& program) {
  auto output = make_pipe();
  if (!output) return base::passing(output);
  pid_t const child = ::fork();
  if (child < 0) return base::fail_errno("start the dynamic linker");
  if (child == 0) {
    ::dup2(output->write.get(), STDOUT_FILENO);
    char const* const argv[] = {linker, "--list", program.c_str(), nullptr};
    char const* const environment[] = {nullptr};
    // SAFETY: execve() does not write to the strings; its signature is older than const.
    ::execve(
        linker, const_cast<char* const*>(argv), const_cast<char* const*>(environment));  // NOLINT
    ::_exit(127);
  }
  output->write.reset();
  auto const text = read_all(output->read);
  int status = -1;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (status != 0)
    return base::fail(base::Code::unavailable, "a program to be jailed cannot be loaded", program);
  std::vector<JailFile> files{{program, program}, {linker, linker}};
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    // "	libz.so.1 => /lib/x86_64-linux-gnu/libz.so.1 (0x00007f…)"
    auto const from = line.find("=> /");
    auto const to = line.find(" (0x");
    if (from == std::string::npos || to == std::string::npos || to < from) continue;
    auto path = line.substr(from + 3, to - from - 3);
    if (path != linker) files.push_back({path, path});
  }
  return files;
}

base::Result<std::vector<JailFile>> files_of_qemu() {
  std::vector<JailFile> all;
  auto const add = [&](std::vector<JailFile> more) {
    for (auto& file : more) {
      auto const same = [&](JailFile const& known) { return known.inside == file.inside; };
      if (std::ranges::none_of(all, same)) all.push_back(std::move(file));
    }
  };
  static constexpr char module[] = "/usr/lib/x86_64-linux-gnu/qemu/accel-tcg-x86_64.so";
  for (char const* program : {vmm::qemu_binary, module}) {
    // Builds without modules have the emulator inside.
    if (program == module && ::access(module, F_OK) != 0) continue;
    auto files = files_of_program(program);
    if (!files) return base::passing(files);
    add(std::move(*files));
  }
  for (char const* file : {"/etc/ld.so.cache",
                           "/usr/share/qemu/bios-microvm.bin",
                           "/usr/share/qemu/qboot.rom",
                           "/usr/share/qemu/pvh.bin",
                           "/usr/share/qemu/linuxboot_dma.bin"}) {
    if (::access(file, R_OK) == 0) add({{file, file}});
  }
  return all;
}

}  // namespace hostd
