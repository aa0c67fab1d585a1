#include "net/block.hpp"
#include "tls/context.hpp"
#include "tls/minter.hpp"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

namespace tls {
namespace {

constexpr std::size_t record_bytes = 16 * 1024;
constexpr std::size_t together_bytes = 48 * 1024;

struct SslDeleter {
  void operator()(SSL* ssl) const noexcept { SSL_free(ssl); }
};

/// TLS between two memory buffers of OpenSSL, which we carry to and from the stream below. Reader
/// and writer share one SSL object on one thread; bytes to the peer leave in one queue, because
/// reading may have something to send too (key updates, alerts).
class TlsStream final : public net::ByteStream {
 public:
  TlsStream(std::shared_ptr<void> context,
            std::unique_ptr<SSL, SslDeleter> ssl,
            net::Stream below,
            asio::any_io_executor executor)
      : context_(std::move(context)),
        ssl_(std::move(ssl)),
        below_(std::move(below)),
        sending_(std::move(executor)) {
    in_ = BIO_new(BIO_s_mem());
    out_ = BIO_new(BIO_s_mem());
    BIO_set_mem_eof_return(in_, -1);     // empty means "more will come", not the end
    SSL_set_bio(ssl_.get(), in_, out_);  // they belong to ssl_ now
  }

  Session session() const {
    unsigned char const* protocol = nullptr;
    unsigned length = 0;
    SSL_get0_alpn_selected(ssl_.get(), &protocol, &length);
    return {SSL_get_version(ssl_.get()), std::string(protocol, protocol + length)};
  }

  async::Task<void> handshake() {
    for (;;) {
      ERR_clear_error();
      int const result = SSL_do_handshake(ssl_.get());
      int const why = SSL_get_error(ssl_.get(), result);
      auto const reason =
          result == 1 || why == SSL_ERROR_WANT_READ ? std::string() : handshake_error();
      auto const sent = co_await send_pending();  // also the alert that says why we refuse
      if (result == 1) co_return sent;
      if (why != SSL_ERROR_WANT_READ)
        co_return base::fail(base::Code::unavailable, "TLS handshake: " + reason);
      if (!sent) co_return std::unexpected(sent.error());
      auto const more = co_await receive();
      if (!more) co_return std::unexpected(more.error());
      if (!*more)
        co_return base::fail(base::Code::unavailable,
                             "TLS handshake: the peer closed the connection");
    }
  }

  async::Task<std::size_t> read_some(std::span<char> into) override {
    for (;;) {
      ERR_clear_error();
      std::size_t count = 0;
      int const result = SSL_read_ex(ssl_.get(), into.data(), into.size(), &count);
      int const why = SSL_get_error(ssl_.get(), result);
      if (result == 1) co_return count;
      if (why == SSL_ERROR_ZERO_RETURN) co_return std::size_t{0};
      if (why != SSL_ERROR_WANT_READ)
        co_return base::fail(base::Code::unavailable, "TLS read: " + openssl_error());
      if (BIO_ctrl_pending(out_) > 0) {
        auto const sent = co_await send_pending();
        if (!sent) co_return std::unexpected(sent.error());
      }
      auto const more = co_await receive();
      if (!more) co_return std::unexpected(more.error());
      // Without close_notify the end may be an attacker's: whoever needs to know must not take it
      // for complete.
      if (!*more) co_return base::fail(base::Code::unavailable, "TLS read: the connection was cut");
    }
  }

  async::Task<void> write_all(std::span<char const> bytes) override {
    while (!bytes.empty()) {
      auto const piece = bytes.first(std::min(bytes.size(), record_bytes));
      ERR_clear_error();
      std::size_t count = 0;
      if (SSL_write_ex(ssl_.get(), piece.data(), piece.size(), &count) != 1) {
        co_return base::fail(base::Code::unavailable, "TLS write: " + openssl_error());
      }
      bytes = bytes.subspan(count);
      // Some records go together: a call of the kernel costs more than their encryption.
      if (!bytes.empty() && BIO_ctrl_pending(out_) < together_bytes) continue;
      auto const sent = co_await send_pending();
      if (!sent) co_return std::unexpected(sent.error());
    }
    co_return base::Result<void>();
  }

  async::Task<void> shutdown_write() override {
    ERR_clear_error();
    SSL_shutdown(ssl_.get());  // writes close_notify; we never wait for the peer's
    ERR_clear_error();
    auto const sent = co_await send_pending();
    if (!sent) co_return sent;
    co_return co_await below_->shutdown_write();
  }

  void close() noexcept override { below_->close(); }

  std::string peer_name() const override { return below_->peer_name(); }

  int native_handle() const noexcept override { return below_->native_handle(); }

 private:
  async::Task<void> send_pending() {
    if (BIO_ctrl_pending(out_) == 0) co_return base::Result<void>();
    auto const turn = co_await sending_.enter();
    std::string bytes;
    while (BIO_ctrl_pending(out_) > 0) {
      bytes.resize(BIO_ctrl_pending(out_));
      std::size_t count = 0;
      if (BIO_read_ex(out_, bytes.data(), bytes.size(), &count) != 1) break;
      auto const sent = co_await below_->write_text(std::string_view(bytes).substr(0, count));
      if (!sent) co_return sent;
    }
    co_return base::Result<void>();
  }

  async::Task<bool> receive() {
    net::Block buffer;  // only while a read waits
    auto const count = co_await below_->read_some(buffer.span());
    if (!count) co_return std::unexpected(count.error());
    std::size_t written = 0;
    if (*count > 0 && BIO_write_ex(in_, buffer.span().data(), *count, &written) != 1) {
      co_return base::fail(base::Code::internal, "TLS: out of memory");
    }
    co_return *count > 0;
  }

  std::string handshake_error() {
    auto const verdict = SSL_get_verify_result(ssl_.get());
    if (verdict != X509_V_OK) {
      ERR_clear_error();
      return X509_verify_cert_error_string(verdict);
    }
    return openssl_error();
  }

  std::shared_ptr<void> context_;
  std::unique_ptr<SSL, SslDeleter> ssl_;
  BIO* in_ = nullptr;
  BIO* out_ = nullptr;
  net::Stream below_;
  async::Turnstile sending_;
};

async::Task<net::Stream> shake_hands(std::unique_ptr<TlsStream> stream, base::Deadline deadline) {
  auto shaking = stream->handshake();
  auto const done = co_await async::with_deadline(deadline, std::move(shaking));
  if (!done) {
    stream->close();
    co_return std::unexpected(done.error());
  }
  co_return std::move(stream);
}

bool is_ip_literal(std::string const& host) {
  std::unique_ptr<ASN1_OCTET_STRING, decltype(&ASN1_OCTET_STRING_free)> const address(
      a2i_IPADDRESS(host.c_str()), &ASN1_OCTET_STRING_free);
  ERR_clear_error();
  return address != nullptr;
}

}  // namespace

Session session_of(net::ByteStream const& stream) {
  auto const* const secured = dynamic_cast<TlsStream const*>(&stream);
  return secured ? secured->session() : Session{};
}

async::Task<net::Stream> accept(std::shared_ptr<ServerContext> context,
                                net::Stream stream,
                                base::Deadline deadline) {
  // SAFETY: ServerContext::load() is the only maker of ServerContexts.
  auto* const native = static_cast<OpenServerContext*>(context.get())->get();
  std::unique_ptr<SSL, SslDeleter> ssl(SSL_new(native));
  if (!ssl) co_return base::fail(base::Code::internal, "TLS: out of memory");
  co_return co_await accept_ssl(std::move(context), ssl.release(), std::move(stream), deadline);
}

async::Task<net::Stream> accept_ssl(std::shared_ptr<void> context,
                                    ssl_st* ssl,
                                    net::Stream stream,
                                    base::Deadline deadline) {
  std::unique_ptr<SSL, SslDeleter> owned(ssl);
  SSL_set_accept_state(ssl);
  auto executor = co_await asio::this_coro::executor;
  auto made = std::make_unique<TlsStream>(
      std::move(context), std::move(owned), std::move(stream), executor);
  co_return co_await shake_hands(std::move(made), deadline);
}

async::Task<net::Stream> connect(std::shared_ptr<ClientContext> context,
                                 net::Stream stream,
                                 std::string host,
                                 base::Deadline deadline) {
  // SAFETY: ClientContext::make() is the only maker of ClientContexts.
  auto* const native = static_cast<OpenClientContext*>(context.get())->get();
  std::unique_ptr<SSL, SslDeleter> ssl(SSL_new(native));
  if (!ssl) co_return base::fail(base::Code::internal, "TLS: out of memory");
  bool named = false;
  if (is_ip_literal(host)) {
    named = X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl.get()), host.c_str()) == 1;
  } else {
    // An empty name would switch the check off: refused.
    // The names of the certificate are those of its extension: CN is no name, and `w*.x` no
    // pattern.
    SSL_set_hostflags(ssl.get(),
                      X509_CHECK_FLAG_NEVER_CHECK_SUBJECT | X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
    named = !host.empty() && SSL_set1_host(ssl.get(), host.c_str()) == 1 &&
            SSL_set_tlsext_host_name(ssl.get(), host.c_str()) == 1;
  }
  if (!named) co_return base::fail(base::Code::invalid_argument, "TLS: not a host name: " + host);
  SSL_set_connect_state(ssl.get());
  auto executor = co_await asio::this_coro::executor;
  auto made =
      std::make_unique<TlsStream>(std::move(context), std::move(ssl), std::move(stream), executor);
  co_return co_await shake_hands(std::move(made), deadline);
}

}  // namespace tls
