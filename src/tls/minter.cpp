// The leaves' key is one of the old kind on purpose: see make_leaf_key().
#define OPENSSL_SUPPRESS_DEPRECATED

#include "tls/minter.hpp"

#include "base/metric_names.hpp"
#include "tls/context.hpp"

#include <unordered_map>

#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/rand.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

namespace tls {
namespace {

constexpr std::size_t names_max = 1024;
constexpr std::chrono::hours validity{24};
/// How far apart the two clocks may drift before certificates are made anew: half of what they are
/// backdated.
constexpr std::chrono::minutes drift_max{30};

template <auto free> struct Free {
  template <class T> void operator()(T* object) const noexcept { free(object); }
};

using Key = std::unique_ptr<EVP_PKEY, Free<EVP_PKEY_free>>;
using Certificate = std::unique_ptr<X509, Free<X509_free>>;
using Bio = std::unique_ptr<BIO, Free<BIO_free_all>>;

std::unexpected<base::Error> failed(std::string_view step) {
  return base::fail(base::Code::internal, fmt::format("{}: {}", step, openssl_error()));
}

/// Of a key of the new kind OpenSSL 3.0 writes and reads the public half anew for each certificate
/// that gets it, which takes ten times as long as signing; of the old kind it keeps what it has.
Key make_leaf_key() {
  std::unique_ptr<EC_KEY, Free<EC_KEY_free>> curve(EC_KEY_new_by_curve_name(NID_X9_62_prime256v1));
  Key key(EVP_PKEY_new());
  if (!curve || !key || EC_KEY_generate_key(curve.get()) != 1) return nullptr;
  if (EVP_PKEY_assign_EC_KEY(key.get(), curve.get()) != 1) return nullptr;
  static_cast<void>(curve.release());
  return key;
}

bool set_serial(X509* certificate) {
  std::array<unsigned char, 16> serial{};
  if (RAND_bytes(serial.data(), serial.size()) != 1) return false;
  serial[0] = static_cast<unsigned char>((serial[0] & 0x7f) | 0x40);
  std::unique_ptr<BIGNUM, Free<BN_free>> const number(
      BN_bin2bn(serial.data(), serial.size(), nullptr));
  return number && BN_to_ASN1_INTEGER(number.get(), X509_get_serialNumber(certificate)) != nullptr;
}

bool set_times(X509* certificate, base::WallTime wall) {
  auto const seconds = std::chrono::duration_cast<std::chrono::seconds>(validity).count();
  auto now = std::chrono::system_clock::to_time_t(wall);
  return X509_time_adj_ex(X509_getm_notBefore(certificate), 0, -3600, &now) != nullptr &&
         X509_time_adj_ex(X509_getm_notAfter(certificate), 0, seconds, &now) != nullptr;
}

bool add_constant(X509* certificate, X509* issuer, int kind, char const* value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  std::unique_ptr<X509_EXTENSION, Free<X509_EXTENSION_free>> const extension(
      X509V3_EXT_conf_nid(nullptr, &context, kind, value));
  return extension && X509_add_ext(certificate, extension.get(), -1) == 1;
}

/// By GENERAL_NAME calls and never by OpenSSL's text form, in which a comma in a name would begin a
/// second one.
bool add_name(X509* certificate, std::string const& host) {
  std::unique_ptr<GENERAL_NAMES, Free<GENERAL_NAMES_free>> const names(sk_GENERAL_NAME_new_null());
  auto* const name = GENERAL_NAME_new();
  auto* const text = ASN1_IA5STRING_new();
  if (!names || name == nullptr || text == nullptr) return false;
  ASN1_STRING_set(text, host.data(), static_cast<int>(host.size()));
  GENERAL_NAME_set0_value(name, GEN_DNS, text);
  sk_GENERAL_NAME_push(names.get(), name);
  return X509_add1_ext_i2d(certificate, NID_subject_alt_name, names.get(), 1, X509V3_ADD_DEFAULT) ==
         1;
}

struct Minted {
  Certificate certificate;
  base::SteadyTime until;
  base::SteadyTime made;
  base::WallTime made_wall;
};

class MemoryMinter final : public Minter, public std::enable_shared_from_this<MemoryMinter> {
 public:
  explicit MemoryMinter(base::Clock const& clock) : clock_(clock) {}

  base::Result<void> begin(std::string const& label) {
    authority_key_ = Key(EVP_EC_gen("P-256"));
    leaf_key_ = make_leaf_key();
    authority_ = Certificate(X509_new());
    context_ = make_context(true);
    if (!authority_key_ || !leaf_key_ || !authority_ || !context_) return failed("make a key");
    auto* const name = X509_get_subject_name(authority_.get());
    // SAFETY: OpenSSL takes text as unsigned bytes.
    auto const text = fmt::format("SPACE sandbox gateway {}", label);
    auto const* bytes = reinterpret_cast<unsigned char const*>(text.c_str());
    auto* const root = authority_.get();
    bool const good =
        X509_set_version(root, X509_VERSION_3) == 1 && set_serial(root) &&
        // Far back, so that a clock that is set back does not make the authority one of the future.
        X509_gmtime_adj(X509_getm_notBefore(root), -10L * 365 * 86'400) != nullptr &&
        X509_gmtime_adj(X509_getm_notAfter(root), 10L * 365 * 86'400) != nullptr &&
        X509_set_pubkey(root, authority_key_.get()) == 1 &&
        X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_UTF8, bytes, -1, -1, 0) == 1 &&
        X509_set_issuer_name(root, name) == 1 &&
        add_constant(root, root, NID_basic_constraints, "critical,CA:TRUE,pathlen:0") &&
        add_constant(root, root, NID_key_usage, "critical,keyCertSign,cRLSign") &&
        add_constant(root, root, NID_subject_key_identifier, "hash") &&
        X509_sign(root, authority_key_.get(), EVP_sha256()) > 0;
    if (!good) return failed("make the authority");
    offer_http_1_1(context_.get());
    if (SSL_CTX_use_PrivateKey(context_.get(), leaf_key_.get()) != 1)
      return failed("use the leaf key");
    // Tickets of one name must not resume a session of another: a session is worth a certificate
    // check.
    SSL_CTX_set_session_cache_mode(context_.get(), SSL_SESS_CACHE_OFF);
    SSL_CTX_set_options(context_.get(), SSL_OP_NO_TICKET);
    SSL_CTX_set_num_tickets(context_.get(), 0);
    // The leaf alone is sent: no search for its chain in each handshake.
    SSL_CTX_set_mode(context_.get(), SSL_MODE_NO_AUTO_CHAIN);
    Bio const bio(BIO_new(BIO_s_mem()));
    PEM_write_bio_X509(bio.get(), root);
    char* data = nullptr;
    auto const size = BIO_get_mem_data(bio.get(), &data);
    authority_pem_.assign(data, static_cast<std::size_t>(size));
    return make_extensions();
  }

  std::string const& authority_pem() const noexcept override { return authority_pem_; }

  base::Result<void> prepare(std::string const& host) override {
    auto const now = clock_.steady_now();
    if (auto const known = minted_.find(host); known != minted_.end() && good(known->second))
      return {};
    if (minted_.size() >= names_max) minted_.clear();
    auto leaf = mint(host);
    if (!leaf) return base::passing(leaf);
    std::chrono::duration<double> const took = clock_.steady_now() - now;
    base::metrics().observe(base::metric::mint_seconds, took.count());
    minted_.insert_or_assign(
        host,
        Minted{std::move(*leaf), now + validity - std::chrono::hours(2), now, clock_.wall_now()});
    return {};
  }

  async::Task<net::Stream> accept(std::string host,
                                  net::Stream stream,
                                  base::Deadline deadline) override {
    if (auto prepared = prepare(host); !prepared)
      co_return base::passing(prepared, "make a certificate");
    std::unique_ptr<SSL, Free<SSL_free>> ssl(SSL_new(context_.get()));
    if (!ssl || SSL_use_certificate(ssl.get(), minted_.at(host).certificate.get()) != 1) {
      co_return failed("use the certificate");
    }
    auto keep = std::static_pointer_cast<void>(shared_from_this());
    co_return co_await accept_ssl(std::move(keep), ssl.release(), std::move(stream), deadline);
  }

 private:
  /// Not after its time, nor when the host's clock was set meanwhile: the guest's follows it.
  bool good(Minted const& minted) const {
    auto const steady = clock_.steady_now();
    auto const drift = (clock_.wall_now() - minted.made_wall) - (steady - minted.made);
    return minted.until > steady && drift < drift_max && drift > -drift_max;
  }

  /// What all leaves have in common beside the key.
  base::Result<void> make_extensions() {
    auto* const issuer = authority_.get();
    common_ = Certificate(X509_new());
    auto* const common = common_.get();
    bool const good = common != nullptr &&
                      add_constant(common, issuer, NID_basic_constraints, "critical,CA:FALSE") &&
                      add_constant(common, issuer, NID_key_usage, "critical,digitalSignature") &&
                      add_constant(common, issuer, NID_ext_key_usage, "serverAuth") &&
                      add_constant(common, issuer, NID_authority_key_identifier, "keyid:always");
    if (!good) return failed("make the extensions of certificates");
    return {};
  }

  bool add_common(X509* leaf) const {
    for (int i = 0; i < X509_get_ext_count(common_.get()); ++i)
      if (X509_add_ext(leaf, X509_get_ext(common_.get(), i), -1) != 1) return false;
    return true;
  }

  base::Result<Certificate> mint(std::string const& host) {
    Certificate made(X509_new());
    auto* const leaf = made.get();
    bool const good = leaf != nullptr && X509_set_version(leaf, X509_VERSION_3) == 1 &&
                      set_serial(leaf) && set_times(leaf, clock_.wall_now()) &&
                      X509_set_pubkey(leaf, leaf_key_.get()) == 1 &&
                      X509_set_issuer_name(leaf, X509_get_subject_name(authority_.get())) == 1 &&
                      add_common(leaf) && add_name(leaf, host) &&
                      X509_sign(leaf, authority_key_.get(), EVP_sha256()) > 0;
    if (!good) return failed("make a certificate");
    return made;
  }

  base::Clock const& clock_;
  Key authority_key_;
  Key leaf_key_;
  Certificate authority_;
  Certificate common_;  // carries the extensions that all leaves have
  Context context_;
  std::string authority_pem_;
  std::unordered_map<std::string, Minted> minted_;
};

}  // namespace

base::Result<std::shared_ptr<Minter>> Minter::make(std::string const& label,
                                                   base::Clock const& clock) {
  auto minter = std::make_shared<MemoryMinter>(clock);
  if (auto begun = minter->begin(label); !begun) return base::passing(begun);
  return std::shared_ptr<Minter>(std::move(minter));
}

}  // namespace tls
