#include "base/log.hpp"
#include "os/fd.hpp"
#include "tls/context.hpp"

#include <sys/file.h>
#include <sys/stat.h>

#include <fcntl.h>
#include <openssl/bio.h>
#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>
#include <unistd.h>

namespace tls {
namespace {

template <auto free_function> struct Free {
  template <class T> void operator()(T* object) const noexcept { free_function(object); }
};

using Key = std::unique_ptr<EVP_PKEY, Free<EVP_PKEY_free>>;
using Certificate = std::unique_ptr<X509, Free<X509_free>>;
using Bio = std::unique_ptr<BIO, Free<BIO_free_all>>;

constexpr long day_s = 24L * 60 * 60;
constexpr int authority_days = 3650;
constexpr int leaf_days = 398;  // browsers refuse more
constexpr int renew_before_days = 30;

struct Identity {
  Certificate certificate;
  Key key;
};

std::unexpected<base::Error> failed(std::string_view step) {
  return base::fail(base::Code::internal, fmt::format("{}: {}", step, openssl_error()));
}

bool exists(std::string const& path) {
  return ::access(path.c_str(), F_OK) == 0;
}

/// Whole or not at all, also when the power fails in between.
base::Result<void> write_file(std::string const& path, std::string_view text, mode_t mode) {
  auto const fresh = path + ".new";
  ::unlink(fresh.c_str());
  os::Fd fd(::open(fresh.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, mode));
  if (!fd) return base::fail_errno("make a certificate file", fresh);
  while (!text.empty()) {
    auto const count = ::write(fd.get(), text.data(), text.size());
    if (count < 0) return base::fail_errno("write a certificate file", fresh);
    text.remove_prefix(static_cast<std::size_t>(count));
  }
  if (::fchmod(fd.get(), mode) != 0)
    return base::fail_errno("set a certificate file's mode", fresh);
  auto const synced = fd.sync_and_close();
  if (!synced) return synced;
  if (::rename(fresh.c_str(), path.c_str()) != 0)
    return base::fail_errno("replace a certificate file", path);
  return {};
}

std::string text_of(BIO* bio) {
  char* data = nullptr;
  auto const size = BIO_get_mem_data(bio, &data);
  return {data, static_cast<std::size_t>(size)};
}

std::string pem_of(X509* certificate) {
  Bio const bio(BIO_new(BIO_s_mem()));
  PEM_write_bio_X509(bio.get(), certificate);
  return text_of(bio.get());
}

base::Result<void> write_key(std::string const& path, EVP_PKEY* key) {
  Bio const bio(BIO_new(BIO_s_secmem()));
  if (PEM_write_bio_PrivateKey(bio.get(), key, nullptr, nullptr, 0, nullptr, nullptr) != 1)
    return failed("encode a key");
  auto text = text_of(bio.get());
  auto const written = write_file(path, text, 0600);
  OPENSSL_cleanse(text.data(), text.size());
  return written;
}

Certificate read_certificate(std::string const& path) {
  Bio const bio(BIO_new_file(path.c_str(), "r"));
  return Certificate(bio ? PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr) : nullptr);
}

Key read_key(std::string const& path) {
  Bio const bio(BIO_new_file(path.c_str(), "r"));
  return Key(bio ? PEM_read_bio_PrivateKey(bio.get(), nullptr, nullptr, nullptr) : nullptr);
}

bool add_extension(X509* certificate, X509* issuer, int kind, std::string const& value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  std::unique_ptr<X509_EXTENSION, Free<X509_EXTENSION_free>> const extension(
      X509V3_EXT_conf_nid(nullptr, &context, kind, value.c_str()));
  return extension && X509_add_ext(certificate, extension.get(), -1) == 1;
}

/// Everything but extensions and signature.
base::Result<Identity> draft(std::string const& common_name, int days) {
  Identity made{.certificate = Certificate(X509_new()), .key = Key(EVP_EC_gen("P-256"))};
  auto* const certificate = made.certificate.get();
  std::array<unsigned char, 16> serial{};
  if (certificate == nullptr || !made.key || RAND_bytes(serial.data(), serial.size()) != 1)
    return failed("make a key");
  serial[0] = static_cast<unsigned char>((serial[0] & 0x7f) | 0x40);  // positive, and never shorter
  std::unique_ptr<BIGNUM, Free<BN_free>> const number(
      BN_bin2bn(serial.data(), serial.size(), nullptr));
  auto* const name = X509_get_subject_name(certificate);
  // SAFETY: OpenSSL takes text as unsigned bytes.
  auto const* text = reinterpret_cast<unsigned char const*>(common_name.c_str());
  bool const good =
      X509_set_version(certificate, X509_VERSION_3) == 1 && number &&
      BN_to_ASN1_INTEGER(number.get(), X509_get_serialNumber(certificate)) != nullptr &&
      // An hour back, for guests and clients whose clock is behind.
      X509_gmtime_adj(X509_getm_notBefore(certificate), -3600) != nullptr &&
      X509_gmtime_adj(X509_getm_notAfter(certificate), days * day_s) != nullptr &&
      X509_set_pubkey(certificate, made.key.get()) == 1 &&
      X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_UTF8, text, -1, -1, 0) == 1;
  if (!good) return failed("fill in a certificate");
  return made;
}

base::Result<Identity> make_authority() {
  std::array<unsigned char, 4> salt{};
  RAND_bytes(salt.data(), salt.size());
  // A name of its own for each installation: trust stores tell authorities apart by name.
  auto made = draft(
      fmt::format(
          "SPACE local authority {:02x}{:02x}{:02x}{:02x}", salt[0], salt[1], salt[2], salt[3]),
      authority_days);
  if (!made) return base::passing(made);
  auto* const certificate = made->certificate.get();
  bool const good =
      X509_set_issuer_name(certificate, X509_get_subject_name(certificate)) == 1 &&
      add_extension(
          certificate, certificate, NID_basic_constraints, "critical,CA:TRUE,pathlen:0") &&
      add_extension(certificate, certificate, NID_key_usage, "critical,keyCertSign,cRLSign") &&
      add_extension(certificate, certificate, NID_subject_key_identifier, "hash") &&
      X509_sign(certificate, made->key.get(), EVP_sha256()) > 0;
  if (!good) return failed("sign the authority's certificate");
  return made;
}

base::Result<Identity> make_leaf(Identity const& authority, std::string const& domain) {
  auto made = draft(domain, leaf_days);
  if (!made) return base::passing(made);
  auto* const certificate = made->certificate.get();
  auto* const issuer = authority.certificate.get();
  auto const names = fmt::format("DNS:{0},DNS:*.{0},DNS:localhost,IP:127.0.0.1,IP:::1", domain);
  bool const good =
      X509_set_issuer_name(certificate, X509_get_subject_name(issuer)) == 1 &&
      add_extension(certificate, issuer, NID_basic_constraints, "critical,CA:FALSE") &&
      add_extension(certificate, issuer, NID_key_usage, "critical,digitalSignature") &&
      add_extension(certificate, issuer, NID_ext_key_usage, "serverAuth") &&
      add_extension(certificate, issuer, NID_subject_alt_name, names) &&
      add_extension(certificate, issuer, NID_subject_key_identifier, "hash") &&
      add_extension(certificate, issuer, NID_authority_key_identifier, "keyid:always") &&
      X509_sign(certificate, authority.key.get(), EVP_sha256()) > 0;
  if (!good) return failed("sign the server's certificate");
  return made;
}

/// Lower-case letters, digits, '-' and '.', because the name is spliced into OpenSSL's extension
/// syntax.
base::Result<std::string> checked_domain(std::string const& domain) {
  auto const name = domain.substr(0, domain.find(':'));
  bool const plain = std::ranges::all_of(name, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '.';
  });
  // A certificate for every name of a whole top-level domain is accepted by nobody.
  if (!plain || !name.contains('.') || name.size() > 200 || name.starts_with('.') ||
      name.ends_with('.')) {
    return base::fail(base::Code::invalid_argument, "not a domain for certificates: " + domain);
  }
  return name;
}

base::Result<Identity> load_or_make_authority(std::string const& directory) {
  auto const certificate_path = directory + "/ca.pem";
  auto const key_path = directory + "/ca.key";
  if (exists(certificate_path)) {
    Identity found{.certificate = read_certificate(certificate_path), .key = read_key(key_path)};
    bool const good = found.certificate && found.key &&
                      X509_check_private_key(found.certificate.get(), found.key.get()) == 1 &&
                      X509_cmp_current_time(X509_get0_notAfter(found.certificate.get())) > 0;
    if (good) return found;
    ERR_clear_error();
    // Clients trust this one: making another is the owner's decision.
    return base::fail(
        base::Code::conflict,
        "ca.pem cannot be used (its key ca.key is missing or another one, or it has expired): "
        "restore both, or remove both and let every client trust the new one",
        certificate_path);
  }
  auto made = make_authority();
  if (!made) return base::passing(made);
  auto written = write_key(key_path, made->key.get());
  if (written) written = write_file(certificate_path, pem_of(made->certificate.get()), 0644);
  if (!written) return base::passing(written);
  return made;
}

bool is_good_leaf(std::string const& directory, X509* authority, std::string const& domain) {
  auto const leaf = read_certificate(directory + "/server.pem");
  auto const key = read_key(directory + "/server.key");
  bool good = leaf && key && X509_check_private_key(leaf.get(), key.get()) == 1;
  if (good) {
    auto soon = std::chrono::system_clock::to_time_t(base::system_clock().wall_now()) +
                renew_before_days * day_s;
    auto const probe = "probe." + domain;
    good = X509_verify(leaf.get(), X509_get0_pubkey(authority)) == 1 &&
           X509_cmp_time(X509_get0_notAfter(leaf.get()), &soon) > 0 &&
           X509_check_host(leaf.get(), domain.c_str(), domain.size(), 0, nullptr) == 1 &&
           X509_check_host(leaf.get(), probe.c_str(), probe.size(), 0, nullptr) == 1;
  }
  ERR_clear_error();
  return good;
}

}  // namespace

base::Result<bool> ensure_certificates(std::string const& directory, std::string const& domain) {
  ERR_clear_error();
  auto const name = checked_domain(domain);
  if (!name) return std::unexpected(name.error());
  os::Fd const lock(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!lock) return base::fail_errno("open the directory of certificates", directory);
  // Two programs that start at once must not make two authorities.
  if (::flock(lock.get(), LOCK_EX) != 0)
    return base::fail_errno("lock the directory of certificates", directory);
  auto const authority = load_or_make_authority(directory);
  if (!authority) return std::unexpected(authority.error());
  if (is_good_leaf(directory, authority->certificate.get(), *name)) return false;
  auto const leaf = make_leaf(*authority, *name);
  if (!leaf) return std::unexpected(leaf.error());
  auto written = write_key(directory + "/server.key", leaf->key.get());
  auto const chain = pem_of(leaf->certificate.get()) + pem_of(authority->certificate.get());
  if (written) written = write_file(directory + "/server.pem", chain, 0644);
  if (!written) return base::passing(written);
  base::log::info("certificate_issued", {{"domain", *name}});
  return true;
}

}  // namespace tls
