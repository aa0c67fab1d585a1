#include "agent/path.hpp"

namespace agent {
namespace {
constexpr std::size_t path_bytes_max = 4095;  // PATH_MAX counts the terminating NUL

/// How many bytes the well-formed character at the front has (RFC 3629: no surrogates, nothing
/// overlong); 0 for none.
std::size_t character_size(std::string_view text) {
  auto const byte = [&](std::size_t at) {
    return static_cast<unsigned char>(at < text.size() ? text[at] : 0);
  };
  auto const follows = [&](std::size_t at) { return (byte(at) & 0xC0U) == 0x80U; };
  auto const first = byte(0);
  if (first < 0x80) return 1;
  if (first >= 0xC2 && first <= 0xDF) return follows(1) ? 2 : 0;
  if (first >= 0xE0 && first <= 0xEF) {
    bool const sane = (first != 0xE0 || byte(1) >= 0xA0) && (first != 0xED || byte(1) < 0xA0);
    return sane && follows(1) && follows(2) ? 3 : 0;
  }
  if (first >= 0xF0 && first <= 0xF4) {
    bool const sane = (first != 0xF0 || byte(1) >= 0x90) && (first != 0xF4 || byte(1) < 0x90);
    return sane && follows(1) && follows(2) && follows(3) ? 4 : 0;
  }
  return 0;
}

}  // namespace

base::Result<std::string> resolve_path(std::string_view path,
                                       User const& user,
                                       std::string_view default_workdir) {
  using base::Code;
  if (path.find('\0') != std::string_view::npos)
    return base::fail(Code::invalid_argument, "a path must not hold a NUL byte");
  std::string resolved;
  if (path.empty()) {
    if (default_workdir.starts_with('/')) return std::string(default_workdir);
    resolved = clean_path(user.home + "/" + std::string(default_workdir));
  } else if (path.front() == '~') {
    if (path.size() > 1 && path[1] != '/')
      return base::fail(Code::invalid_argument,
                        fmt::format("cannot expand user-specific home directory: '{}'", path));
    resolved = clean_path(user.home + "/" + std::string(path.substr(1)));
  } else if (path.front() == '/') {
    resolved = path;
  } else {
    resolved = clean_path(user.home + "/" + std::string(path));
  }
  if (resolved.size() > path_bytes_max)
    return base::fail(Code::invalid_argument,
                      fmt::format("the path is longer than {} bytes", path_bytes_max));
  return resolved;
}

std::string clean_path(std::string_view path) {
  std::string clean;
  while (!path.empty()) {
    auto const cut = path.find('/');
    auto const part = path.substr(0, cut);
    path.remove_prefix(cut == std::string_view::npos ? path.size() : cut + 1);
    if (part.empty() || part == ".") continue;
    if (part == "..") {
      auto const last = clean.rfind('/');
      clean.resize(last == std::string::npos ? 0 : last);
    } else {
      clean.append("/").append(part);
    }
  }
  return clean.empty() ? "/" : clean;
}

std::string base_name(std::string_view path) {
  while (path.size() > 1 && path.ends_with('/'))
    path.remove_suffix(1);
  auto const cut = path.rfind('/');
  if (path.size() <= 1 || cut == std::string_view::npos) return std::string(path);
  return std::string(path.substr(cut + 1));
}

std::string parent_of(std::string_view path) {
  while (path.size() > 1 && path.ends_with('/'))
    path.remove_suffix(1);
  auto const cut = path.rfind('/');
  if (cut == std::string_view::npos || cut == 0) return "/";
  return std::string(path.substr(0, cut));
}

std::string as_utf8(std::string_view bytes) {
  std::string text;
  while (!bytes.empty()) {
    auto const size = character_size(bytes);
    text.append(size == 0 ? std::string_view("\xEF\xBF\xBD") : bytes.substr(0, size));
    bytes.remove_prefix(size == 0 ? 1 : size);
  }
  return text;
}

}  // namespace agent
