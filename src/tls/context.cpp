#include "tls/context.hpp"

#include <openssl/err.h>
#include <openssl/ssl.h>

namespace tls {
namespace {

// In ALPN's own form: each name with its length in front.
constexpr std::array<unsigned char, 9> http_1_1 = {8, 'h', 't', 't', 'p', '/', '1', '.', '1'};

/// Offering h2 would commit us to real HTTP/2; a client that insists on it is refused, not misled.
int choose_protocol(SSL*,
                    unsigned char const** out,
                    unsigned char* out_size,
                    unsigned char const* offered,
                    unsigned offered_size,
                    void*) noexcept {
  unsigned char* chosen = nullptr;
  if (SSL_select_next_proto(
          &chosen, out_size, http_1_1.data(), http_1_1.size(), offered, offered_size) !=
      OPENSSL_NPN_NEGOTIATED) {
    return SSL_TLSEXT_ERR_ALERT_FATAL;
  }
  *out = chosen;
  return SSL_TLSEXT_ERR_OK;
}

}  // namespace

Context make_context(bool server) {
  Context context(SSL_CTX_new(server ? TLS_server_method() : TLS_client_method()));
  if (!context) return context;
  SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
  SSL_CTX_set_options(
      context.get(),
      SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION | SSL_OP_CIPHER_SERVER_PREFERENCE);
  // Thousands of idle connections: the 32 KiB of record buffers live only while a record is under
  // way.
  SSL_CTX_set_mode(context.get(), SSL_MODE_RELEASE_BUFFERS | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  return context;
}

void offer_http_1_1(ssl_ctx_st* context) {
  SSL_CTX_set_alpn_select_cb(context, choose_protocol, nullptr);
}

void ContextDeleter::operator()(ssl_ctx_st* context) const noexcept {
  SSL_CTX_free(context);
}

std::string openssl_error() {
  auto const code = ERR_get_error();
  ERR_clear_error();
  if (code == 0) return "unknown TLS error";
  auto const* reason = ERR_reason_error_string(code);
  return reason != nullptr ? reason : fmt::format("TLS error {:x}", code);
}

base::Result<std::shared_ptr<ServerContext>> ServerContext::load(
    std::string const& certificate_pem_file, std::string const& key_pem_file) {
  ERR_clear_error();
  auto context = make_context(true);
  if (!context) return base::fail(base::Code::internal, "make a TLS context: " + openssl_error());
  if (SSL_CTX_use_certificate_chain_file(context.get(), certificate_pem_file.c_str()) != 1) {
    return base::fail(base::Code::invalid_argument,
                      "read the TLS certificate: " + openssl_error(),
                      certificate_pem_file);
  }
  if (SSL_CTX_use_PrivateKey_file(context.get(), key_pem_file.c_str(), SSL_FILETYPE_PEM) != 1 ||
      SSL_CTX_check_private_key(context.get()) != 1) {
    return base::fail(
        base::Code::invalid_argument, "read the TLS key: " + openssl_error(), key_pem_file);
  }
  offer_http_1_1(context.get());
  return std::make_shared<OpenServerContext>(std::move(context));
}

namespace {

base::Result<std::shared_ptr<ClientContext>> finish_client(Context context) {
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER, nullptr);
  // Unlike OpenSSL's other calls this one returns 0 for success.
  if (SSL_CTX_set_alpn_protos(context.get(), http_1_1.data(), http_1_1.size()) != 0) {
    return base::fail(base::Code::internal, "set ALPN: " + openssl_error());
  }
  return std::make_shared<OpenClientContext>(std::move(context));
}

}  // namespace

base::Result<std::shared_ptr<ClientContext>> ClientContext::from_pem(std::string const& ca_pem) {
  ERR_clear_error();
  auto context = make_context(false);
  if (!context) return base::fail(base::Code::internal, "make a TLS context: " + openssl_error());
  if (trust_when_met(context.get(), ca_pem) == 0)
    return base::fail(base::Code::invalid_argument, "no certificate in the text");
  return finish_client(std::move(context));
}

base::Result<std::shared_ptr<ClientContext>> ClientContext::make(std::string const& ca_pem_file) {
  ERR_clear_error();
  auto context = make_context(false);
  if (!context) return base::fail(base::Code::internal, "make a TLS context: " + openssl_error());
  int const trusted = ca_pem_file.empty() ? SSL_CTX_set_default_verify_paths(context.get())
                                          : SSL_CTX_load_verify_locations(
                                                context.get(), ca_pem_file.c_str(), nullptr);
  if (trusted != 1)
    return base::fail(base::Code::invalid_argument,
                      "read the trusted certificates: " + openssl_error(),
                      ca_pem_file);
  return finish_client(std::move(context));
}

}  // namespace tls
