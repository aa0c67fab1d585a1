// Stands in for Firecracker in its jail: makes its socket, opens kernel, initramfs, disk and tap by
// the paths and names that it is told, writes and reads snapshots, and says on its console what it
// found. It does to the host what the real one does; its answers are simpler. Static and free of
// libraries, like a release of the real one.

#include <linux/if_tun.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include <fcntl.h>
#include <unistd.h>

namespace {

std::string g_refusal;  // of the request in hand

bool refuse(std::string const& what) {
  if (g_refusal.empty()) g_refusal = what + ": " + std::strerror(errno);
  return false;
}

std::string text_at(std::string const& body, std::string const& key) {
  auto const at = body.find("\"" + key + "\":\"");
  if (at == std::string::npos) return {};
  auto const from = at + key.size() + 4;
  return body.substr(from, body.find('"', from) - from);
}

void say(std::string const& line) {
  static_cast<void>(::write(1, line.data(), line.size()));
}

bool opens(std::string const& path, int flags) {
  int const file = ::open(path.c_str(), flags | O_CLOEXEC, 0600);
  if (file < 0) return refuse("open " + path);
  ::close(file);
  return true;
}

bool take_tap(std::string const& name) {
  int const tap = ::open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
  if (tap < 0) return refuse("open /dev/net/tun");
  ifreq request{};
  name.copy(request.ifr_name, IFNAMSIZ - 1);
  request.ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR;
  if (::ioctl(tap, TUNSETIFF, &request) != 0) return refuse("take the tap " + name);
  return true;  // kept until the end
}

bool write_file(std::string const& path, std::string const& text, int flags) {
  int const file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | flags, 0600);
  if (file < 0) return refuse("open " + path);
  bool const good = ::write(file, text.data(), text.size()) == static_cast<ssize_t>(text.size()) &&
                    ::fsync(file) == 0;
  if (!good) refuse("write " + path);
  ::close(file);
  return good;
}

std::string head_of(std::string const& path) {
  char bytes[64];
  int const file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) {
    refuse("open " + path);
    return {};
  }
  auto const got = ::read(file, bytes, sizeof bytes);
  ::close(file);
  std::string text(bytes, got > 0 ? static_cast<std::size_t>(got) : 0);
  return text.substr(0, text.find('\0'));
}

void load(std::string const& body) {
  auto const memory = text_at(body, "backend_path");
  say("state: " + head_of(text_at(body, "snapshot_path")) + "\n");
  say("memory: " + head_of(memory) + "\n");
  int const writable = ::open(memory.c_str(), O_RDWR | O_CLOEXEC);
  say(writable < 0 ? "memory is read-only\n" : "MEMORY CAN BE WRITTEN\n");
  if (!take_tap(text_at(body, "host_dev_name"))) return;
  opens("/machine/disk", O_RDWR);
}

/// The answer's body; "" is a 204.
std::string answer(std::string const& head, std::string const& body) {
  static char const* state = "Not started";
  auto const is = [&](char const* request) { return head.starts_with(request); };
  if (is("GET /version ")) return "{\"firecracker_version\":\"1.17.0-fake\"}";
  if (is("GET / ")) return std::string("{\"state\":\"") + state + "\"}";
  if (is("PUT /boot-source "))
    opens(text_at(body, "kernel_image_path"), O_RDONLY) &&
        opens(text_at(body, "initrd_path"), O_RDONLY);
  if (is("PUT /drives/")) write_file(text_at(body, "path_on_host"), "the guest was here", 0);
  if (is("PUT /network-interfaces/")) take_tap(text_at(body, "host_dev_name"));
  if (is("PUT /actions ")) {
    opens("/dev/kvm", O_RDWR);
    state = "Running";
    say("the fake guest runs as " + std::to_string(::getuid()) + "\n");
  }
  if (is("PATCH /vm ")) state = text_at(body, "state") == "Paused" ? "Paused" : "Running";
  if (is("PUT /snapshot/create ") && write_file(text_at(body, "snapshot_path"), "a state", O_TRUNC))
    write_file(text_at(body, "mem_file_path"), "a memory", 0);
  if (is("PUT /snapshot/load ")) {
    load(body);
    state = "Paused";
  }
  return {};
}

void serve(int connection) {
  std::string pending;
  char bytes[4096];
  for (;;) {
    auto const got = ::read(connection, bytes, sizeof bytes);
    if (got <= 0) return;
    pending.append(bytes, static_cast<std::size_t>(got));
    for (;;) {
      auto const end = pending.find("\r\n\r\n");
      if (end == std::string::npos) break;
      auto const head = pending.substr(0, end);
      auto const at = head.find("Content-Length: ");
      std::size_t const length =
          at == std::string::npos ? 0 : std::strtoul(head.c_str() + at + 16, nullptr, 10);
      if (pending.size() < end + 4 + length) break;
      g_refusal.clear();
      auto body = answer(head, pending.substr(end + 4, length));
      pending.erase(0, end + 4 + length);
      char const* status = body.empty() ? "204" : "200";
      if (!g_refusal.empty()) {
        status = "400";
        body = "{\"fault_message\":\"" + g_refusal + "\"}";
      }
      auto text = std::string("HTTP/1.1 ") + status + " \r\nServer: fake\r\n";
      if (!body.empty()) text += "Content-Length: " + std::to_string(body.size()) + "\r\n";
      text += "\r\n" + body;
      static_cast<void>(::write(connection, text.data(), text.size()));
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::string socket_path, log_path;
  for (int i = 1; i + 1 < argc; ++i) {
    if (std::strcmp(argv[i], "--api-sock") == 0) socket_path = argv[i + 1];
    if (std::strcmp(argv[i], "--log-path") == 0) log_path = argv[i + 1];
  }
  int const log = ::open(log_path.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC);
  if (log < 0) return 2;
  static_cast<void>(::write(log, "a line of the log\n", 18));
  int const listener = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  socket_path.copy(address.sun_path, sizeof address.sun_path - 1);
  // SAFETY: how bind() wants it.
  if (::bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) return 3;
  ::usleep(20'000);  // the real one is not quicker
  if (::listen(listener, 8) != 0) return 4;
  for (;;) {
    int const connection = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    if (connection < 0) return 5;
    serve(connection);
    ::close(connection);
  }
}
