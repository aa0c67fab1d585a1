#include "cli/selftest_certificates.hpp"

#include <array>
#include <fstream>

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>

namespace cli::selftest {
namespace {

template <auto free> struct Free {
  template <class T> void operator()(T* object) const noexcept { free(object); }
};

using Key = std::unique_ptr<EVP_PKEY, Free<EVP_PKEY_free>>;
using Certificate = std::unique_ptr<X509, Free<X509_free>>;
using Bio = std::unique_ptr<BIO, Free<BIO_free_all>>;

constexpr long hour_s = 3600;

std::unexpected<base::Error> failed(std::string_view step) {
  return base::fail(base::Code::internal, fmt::format("{} of the self-test", step));
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

std::string pem_of(EVP_PKEY* key) {
  Bio const bio(BIO_new(BIO_s_mem()));
  PEM_write_bio_PrivateKey(bio.get(), key, nullptr, nullptr, 0, nullptr, nullptr);
  return text_of(bio.get());
}

bool extend(X509* certificate, X509* issuer, int kind, std::string const& value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  std::unique_ptr<X509_EXTENSION, Free<X509_EXTENSION_free>> const extension(
      X509V3_EXT_conf_nid(nullptr, &context, kind, value.c_str()));
  return extension && X509_add_ext(certificate, extension.get(), -1) == 1;
}

/// All but issuer, extensions and signature.
Certificate draft(std::string const& name, EVP_PKEY* key, long from_s, long until_s) {
  Certificate made(X509_new());
  auto* const one = made.get();
  std::array<unsigned char, 16> serial{};
  if (one == nullptr || RAND_bytes(serial.data(), serial.size()) != 1) return nullptr;
  serial[0] = static_cast<unsigned char>((serial[0] & 0x7f) | 0x40);
  std::unique_ptr<BIGNUM, Free<BN_free>> const number(
      BN_bin2bn(serial.data(), serial.size(), nullptr));
  // SAFETY: OpenSSL takes text as unsigned bytes.
  auto const* text = reinterpret_cast<unsigned char const*>(name.c_str());
  bool const good = number && X509_set_version(one, X509_VERSION_3) == 1 &&
                    BN_to_ASN1_INTEGER(number.get(), X509_get_serialNumber(one)) != nullptr &&
                    X509_gmtime_adj(X509_getm_notBefore(one), from_s) != nullptr &&
                    X509_gmtime_adj(X509_getm_notAfter(one), until_s) != nullptr &&
                    X509_set_pubkey(one, key) == 1 &&
                    X509_NAME_add_entry_by_txt(
                        X509_get_subject_name(one), "CN", MBSTRING_UTF8, text, -1, -1, 0) == 1;
  return good ? std::move(made) : nullptr;
}

class OpenIssuer final : public Issuer {
 public:
  base::Result<void> begin() {
    key_ = Key(EVP_EC_gen("P-256"));
    authority_ = key_ ? draft("an authority", key_.get(), -hour_s, 24 * hour_s) : nullptr;
    auto* const root = authority_.get();
    bool const good = root != nullptr &&
                      X509_set_issuer_name(root, X509_get_subject_name(root)) == 1 &&
                      extend(root, root, NID_basic_constraints, "critical,CA:TRUE") &&
                      extend(root, root, NID_key_usage, "critical,keyCertSign,cRLSign") &&
                      extend(root, root, NID_subject_key_identifier, "hash") &&
                      X509_sign(root, key_.get(), EVP_sha256()) > 0;
    if (!good) return failed("make an authority");
    authority_pem_ = pem_of(root);
    return {};
  }

  std::string const& authority_pem() const noexcept override { return authority_pem_; }

  base::Result<void> write(Flaw const& flaw, std::string const& directory) override {
    Key const key(EVP_EC_gen("P-256"));
    auto const until = flaw.expired ? -24 * hour_s : 24 * hour_s;
    auto const made = key ? draft(flaw.host, key.get(), -48 * hour_s, until) : nullptr;
    auto* const leaf = made.get();
    if (leaf == nullptr) return failed("make a certificate");
    auto* const issuer = flaw.self_signed ? leaf : authority_.get();
    bool const good = X509_set_issuer_name(leaf, X509_get_subject_name(issuer)) == 1 &&
                      extend(leaf, issuer, NID_basic_constraints, "critical,CA:FALSE") &&
                      (flaw.alternative.empty() ||
                       extend(leaf, issuer, NID_subject_alt_name, "DNS:" + flaw.alternative)) &&
                      X509_sign(leaf, flaw.self_signed ? key.get() : key_.get(), EVP_sha256()) > 0;
    if (!good) return failed("sign a certificate");
    auto const path = directory + "/" + flaw.host;
    std::ofstream certificate(path + ".pem");
    std::ofstream secret(path + ".key");
    certificate << pem_of(leaf);
    secret << pem_of(key.get());
    certificate.close();
    secret.close();
    if (!certificate || !secret) return failed("write a certificate");
    return {};
  }

 private:
  Key key_;
  Certificate authority_;
  std::string authority_pem_;
};

}  // namespace

std::vector<Flaw> const& flaws() {
  static std::vector<Flaw> const list = {
      {.host = "selfsigned.example", .alternative = "selfsigned.example", .self_signed = true},
      {.host = "expired.example", .alternative = "expired.example", .expired = true},
      {.host = "wrongname.example", .alternative = "other.example"},
      {.host = "cnonly.example", .alternative = ""},
      {.host = "deep.wild.example", .alternative = "*.example"}};  // one label too few
  return list;
}

base::Result<std::unique_ptr<Issuer>> Issuer::make() {
  auto issuer = std::make_unique<OpenIssuer>();
  if (auto begun = issuer->begin(); !begun) return base::passing(begun);
  return std::unique_ptr<Issuer>(std::move(issuer));
}

}  // namespace cli::selftest
