// The authorities that a client trusts, each read when a server names it. A system's store has a
// hundred and forty of them, and OpenSSL 3.0 takes 0.2 ms and 9 KiB for each that it reads: 27 ms
// and 1.3 MiB that every gateway would spend on authorities that it never meets.

#include "tls/context.hpp"

#include <map>
#include <string_view>
#include <vector>

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

namespace tls {
namespace {

struct NameDeleter {
  void operator()(X509_NAME* name) const noexcept { X509_NAME_free(name); }
};

/// Certificates as they came, by the hash of their subject.
struct Unread {
  std::multimap<unsigned long, std::string> by_subject;
};

/// Steps into (or over) one element of DER; false when it is not of this kind or does not fit.
bool enter(unsigned char const** at, unsigned char const* end, int wanted, bool over) {
  long size = 0;
  int tag = 0;
  int tag_class = 0;
  int const form = ASN1_get_object(at, &size, &tag, &tag_class, end - *at);
  bool const broken = (form & 0x80) != 0 || size > end - *at;
  if (broken || tag != wanted) return false;
  if (over) *at += size;
  return true;
}

/// Of a certificate, without reading its key, which is what costs.
std::unique_ptr<X509_NAME, NameDeleter> subject_of(std::string_view der) {
  // SAFETY: OpenSSL's type for the same bytes.
  auto const* at = reinterpret_cast<unsigned char const*>(der.data());
  auto const* const end = at + der.size();
  if (!enter(&at, end, V_ASN1_SEQUENCE, false) || !enter(&at, end, V_ASN1_SEQUENCE, false))
    return nullptr;
  auto const* const versioned = at;
  if (!enter(&at, end, 0, true)) at = versioned;  // a certificate of version 1 does not say so
  // Serial number, algorithm, issuer, validity.
  for (int const tag : {V_ASN1_INTEGER, V_ASN1_SEQUENCE, V_ASN1_SEQUENCE, V_ASN1_SEQUENCE})
    if (!enter(&at, end, tag, true)) return nullptr;
  return std::unique_ptr<X509_NAME, NameDeleter>(d2i_X509_NAME(nullptr, &at, end - at));
}

/// As OpenSSL's own search in a directory does: what has this subject goes into the store, and one
/// of it is the answer. The store's other search finds the rest.
int find_by_subject(X509_LOOKUP* lookup,
                    X509_LOOKUP_TYPE type,
                    X509_NAME const* name,
                    X509_OBJECT* found) noexcept {
  if (type != X509_LU_X509) return 0;
  // SAFETY: set by trust_when_met() and freed by forget() alone.
  auto* const unread = static_cast<Unread*>(X509_LOOKUP_get_method_data(lookup));
  auto const [first, last] =
      unread->by_subject.equal_range(X509_NAME_hash_ex(name, nullptr, nullptr, nullptr));
  int any = 0;
  for (auto one = first; one != last; ++one) {
    // SAFETY: OpenSSL's type for the same bytes.
    auto const* at = reinterpret_cast<unsigned char const*>(one->second.data());
    auto* const certificate = d2i_X509(nullptr, &at, static_cast<long>(one->second.size()));
    if (certificate == nullptr) continue;
    bool const same = X509_NAME_cmp(X509_get_subject_name(certificate), name) == 0;
    bool const added = same && X509_STORE_add_cert(X509_LOOKUP_get_store(lookup), certificate) == 1;
    // The caller takes a reference of its own; that of `found` is nobody's, hence ours goes to it.
    if (added && any == 0 && X509_OBJECT_set1_X509(found, certificate) == 1) {
      any = 1;
      X509_free(certificate);
    }
    X509_free(certificate);
  }
  unread->by_subject.erase(first, last);
  ERR_clear_error();
  return any;
}

void forget(X509_LOOKUP* lookup) noexcept {
  // SAFETY: as above.
  delete static_cast<Unread*>(X509_LOOKUP_get_method_data(lookup));
}

X509_LOOKUP_METHOD* method() {
  static auto* const made = [] {
    auto* const fresh = X509_LOOKUP_meth_new("authorities in memory");
    if (fresh != nullptr) {
      X509_LOOKUP_meth_set_get_by_subject(fresh, find_by_subject);
      X509_LOOKUP_meth_set_free(fresh, forget);
    }
    return fresh;
  }();
  return made;
}

std::unique_ptr<Unread> split(std::string const& pem) {
  auto unread = std::make_unique<Unread>();
  std::unique_ptr<BIO, decltype(&BIO_free_all)> const bio(
      BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())), &BIO_free_all);
  char* kind = nullptr;
  char* header = nullptr;
  unsigned char* data = nullptr;
  long size = 0;
  while (bio && PEM_read_bio(bio.get(), &kind, &header, &data, &size) == 1) {
    // SAFETY: so many bytes were read there.
    std::string der(reinterpret_cast<char const*>(data), static_cast<std::size_t>(size));
    bool const certificate = std::string_view(kind) == PEM_STRING_X509;
    for (void* part :
         {static_cast<void*>(kind), static_cast<void*>(header), static_cast<void*>(data)})
      OPENSSL_free(part);
    auto const subject = certificate ? subject_of(der) : nullptr;
    if (!subject) continue;
    auto const hash = X509_NAME_hash_ex(subject.get(), nullptr, nullptr, nullptr);
    unread->by_subject.emplace(hash, std::move(der));
  }
  ERR_clear_error();
  return unread;
}

}  // namespace

std::size_t trust_when_met(ssl_ctx_st* context, std::string const& pem) {
  auto unread = split(pem);
  auto const count = unread->by_subject.size();
  auto* const lookup = count == 0 || method() == nullptr
                           ? nullptr
                           : X509_STORE_add_lookup(SSL_CTX_get_cert_store(context), method());
  if (lookup == nullptr) return 0;
  X509_LOOKUP_set_method_data(lookup, unread.release());
  return count;
}

}  // namespace tls
