#include "hostd/answers.hpp"

#include "base/log.hpp"

#include <sys/stat.h>

namespace hostd {

Answer answer_of(Status status, std::string_view reason) {
  Answer answer;
  answer.reply.status = status;
  reason.copy(answer.reply.reason.data(), answer.reply.reason.size() - 1);
  return answer;
}

Answer failed(base::Error const& error, char const* event, std::uint32_t slot) {
  base::log::error(event, {{"slot", slot}, {"why", error.message()}, {"detail", error.detail()}});
  return answer_of(Status::failed, error.message());
}

std::string key_of_file(std::string const& path) {
  struct stat info{};
  if (::stat(path.c_str(), &info) != 0) return path + " absent\n";
  return fmt::format("{} {}:{} {}.{}\n",
                     path,
                     info.st_dev,
                     info.st_ino,
                     info.st_mtim.tv_sec,
                     info.st_mtim.tv_nsec);
}

base::Result<void> check_guest_file(std::string const& path) {
  struct stat info{};
  if (::stat(path.c_str(), &info) != 0)
    return base::fail_errno("find the guest's kernel and initramfs", path);
  if (info.st_uid == 0 && (info.st_mode & 022) == 0) return {};
  return base::fail(base::Code::denied,
                    "the guest's kernel and initramfs must belong to root, writable by nobody else",
                    path);
}

}  // namespace hostd
