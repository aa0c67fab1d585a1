#include "worker/accelerator.hpp"

#include "base/log.hpp"
#include "os/fd.hpp"

#include <array>
#include <fstream>
#include <iterator>

#include <fcntl.h>
#include <openssl/evp.h>
#include <unistd.h>

namespace worker {
namespace {

std::string read_small(std::string const& path) {
  std::ifstream file(path);
  std::string text(std::istreambuf_iterator<char>(file), {});
  while (!text.empty() && text.back() == '\n')
    text.pop_back();
  return text;
}

base::Result<void> digest_file(EVP_MD_CTX* digest, std::string const& path) {
  os::Fd const file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return base::fail_errno("open the guest's parts", path);
  std::vector<char> buffer(256 * 1024);
  for (;;) {
    auto const got = ::read(file.get(), buffer.data(), buffer.size());
    if (got < 0) return base::fail_errno("read the guest's parts", path);
    if (got == 0) return {};
    EVP_DigestUpdate(digest, buffer.data(), static_cast<std::size_t>(got));
  }
}

base::Result<std::string> fingerprint(std::string const& guest_dir) {
  std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)> const digest(EVP_MD_CTX_new(),
                                                                  EVP_MD_CTX_free);
  EVP_DigestInit_ex(digest.get(), EVP_sha256(), nullptr);
  for (auto const* part : {"/vmlinux", "/initrd.gz"}) {
    if (auto read = digest_file(digest.get(), guest_dir + part); !read)
      return std::unexpected(read.error());
  }
  std::array<unsigned char, 32> sum{};
  EVP_DigestFinal_ex(digest.get(), sum.data(), nullptr);
  std::string hex;
  for (auto const byte : sum)
    hex += fmt::format("{:02x}", byte);
  return hex;
}

}  // namespace

base::Result<void> AcceleratorChoice::open(std::string const& wanted, bool kvm_device) {
  boot_id_ = read_small("/proc/sys/kernel/random/boot_id");
  auto guest = fingerprint(guest_dir_);
  if (!guest) return base::passing(guest, "look at the guest's kernel");
  guest_ = std::move(*guest);
  if (wanted == "tcg") {
    decided_ = vmm::Accelerator::tcg;
    sentence_ = "software emulation, as configured";
  } else if (wanted == "kvm") {
    decided_ = vmm::Accelerator::kvm;
    sentence_ = "KVM, as configured; no guest has booted under it yet";
  } else if (!kvm_device) {
    decided_ = vmm::Accelerator::tcg;
    sentence_ = "software emulation, because this host offers no /dev/kvm";
  }
  auto const known = wire::decode_text<ProofRecord>(read_small(file_), wire::UnknownKeys::ignore);
  if (!known || known->boot_id != boot_id_ || known->guest != guest_ || boot_id_.empty()) return {};
  auto const proven = known->accelerator == "kvm" ? vmm::Accelerator::kvm : vmm::Accelerator::tcg;
  if (decided_ && *decided_ != proven) return {};
  decided_ = proven;
  proven_ = true;
  sentence_ = known->sentence;
  return {};
}

base::Result<void> AcceleratorChoice::record(vmm::Accelerator accelerator, std::string sentence) {
  decided_ = accelerator;
  proven_ = true;
  sentence_ = std::move(sentence);
  auto const temporary = file_ + ".tmp";
  {
    std::ofstream file(temporary, std::ios::trunc);
    file << wire::encode_text(
                ProofRecord{boot_id_, guest_, std::string(vmm::name_of(accelerator)), sentence_})
         << '\n';
    if (!file.flush())
      return base::fail(base::Code::internal, "the proof cannot be written", temporary);
  }
  if (std::rename(temporary.c_str(), file_.c_str()) != 0)
    return base::fail_errno("write the proof", file_);
  return {};
}

}  // namespace worker
