#include "broker/key_provider.hpp"

#include "broker/aead.hpp"
#include "os/fd.hpp"

#include <sys/stat.h>

#include <fcntl.h>
#include <unistd.h>

namespace broker {
namespace {

class FileKeys final : public KeyProvider {
 public:
  explicit FileKeys(base::Secret key)
      : key_(std::move(key)),
        id_("file-" + sha256_hex("space key id:" + key_.reveal()).substr(0, 16)) {}

  std::string key_id() const override { return id_; }

  base::Result<std::string> wrap(base::Secret const& data_key,
                                 std::string_view context) const override {
    return encrypt(key_, data_key.reveal(), fmt::format("wrap:{}:{}", id_, context));
  }

  base::Result<base::Secret> unwrap(std::string_view wrapped,
                                    std::string_view key_id,
                                    std::string_view context) const override {
    if (key_id != id_) {
      return base::fail(
          base::Code::unavailable,
          "the credential was sealed with another root key; put the credential again");
    }
    return decrypt(key_, wrapped, fmt::format("wrap:{}:{}", id_, context));
  }

 private:
  base::Secret key_;
  std::string id_;
};

base::Result<base::Secret> read_key(std::string const& path) {
  os::Fd const file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!file) return base::fail_errno("open the root key", path);
  struct stat info{};
  if (::fstat(file.get(), &info) != 0) return base::fail_errno("look at the root key", path);
  if (!S_ISREG(info.st_mode) || info.st_uid != ::geteuid() || (info.st_mode & 0077) != 0) {
    return base::fail(base::Code::denied,
                      "the root key must be a file of the broker's user with mode 0600",
                      path);
  }
  std::string key(key_bytes + 1, '\0');
  auto const got = ::read(file.get(), key.data(), key.size());
  if (got != static_cast<ssize_t>(key_bytes))
    return base::fail(base::Code::denied, "the root key does not have 32 bytes", path);
  key.resize(key_bytes);
  return base::Secret(std::move(key));
}

base::Result<void> write_file(std::string const& path, std::string_view content) {
  os::Fd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!file) return base::fail_errno("create a key file", path);
  if (::write(file.get(), content.data(), content.size()) != static_cast<ssize_t>(content.size()))
    return base::fail_errno("write a key file", path);
  return file.sync_and_close();
}

}  // namespace

base::Result<std::unique_ptr<KeyProvider>> open_file_keys(std::string const& directory) {
  auto const path = directory + "/root.key";
  auto const marker = directory + "/root.id";
  if (::access(path.c_str(), F_OK) != 0) {
    // A lost key must not be replaced in silence: everything sealed with it would stay shut for
    // ever.
    if (::access(marker.c_str(), F_OK) == 0) {
      return base::fail(base::Code::unavailable,
                        "the root key is missing although credentials were sealed with it: restore "
                        "it from a backup",
                        path);
    }
    auto const key = random_key();
    auto const temporary = path + ".new";
    ::unlink(temporary.c_str());
    if (auto done = write_file(temporary, key.reveal()); !done) return base::passing(done);
    if (::rename(temporary.c_str(), path.c_str()) != 0)
      return base::fail_errno("put the root key in place", path);
  }
  auto key = read_key(path);
  if (!key) return base::passing(key);
  auto keys = std::make_unique<FileKeys>(std::move(*key));
  if (::access(marker.c_str(), F_OK) != 0) {
    if (auto done = write_file(marker, keys->key_id() + "\n"); !done) return base::passing(done);
  }
  return std::unique_ptr<KeyProvider>(std::move(keys));
}

}  // namespace broker
