#pragma once

#include "tls/tls.hpp"

struct ssl_ctx_st;
struct ssl_st;

/// Inside this folder only: what the public contexts hold. Forward declarations keep OpenSSL out of
/// headers.
namespace tls {

struct ContextDeleter {
  void operator()(ssl_ctx_st* context) const noexcept;
};

using Context = std::unique_ptr<ssl_ctx_st, ContextDeleter>;

class OpenServerContext final : public ServerContext {
 public:
  explicit OpenServerContext(Context context) : context_(std::move(context)) {}

  ssl_ctx_st* get() const noexcept { return context_.get(); }

 private:
  Context context_;
};

class OpenClientContext final : public ClientContext {
 public:
  explicit OpenClientContext(Context context) : context_(std::move(context)) {}

  ssl_ctx_st* get() const noexcept { return context_.get(); }

 private:
  Context context_;
};

/// Handshakes as a server with an SSL object that has its certificate already; takes `ssl`, and
/// holds `context` as long as the stream lives.
async::Task<net::Stream> accept_ssl(std::shared_ptr<void> context,
                                    ssl_st* ssl,
                                    net::Stream stream,
                                    base::Deadline deadline);

/// Minimum version, options and modes that every context of ours has.
Context make_context(bool server);
/// Offers and takes http/1.1 only.
void offer_http_1_1(ssl_ctx_st* context);

/// The client trusts the certificates of this text, each of which is read when a server's chain
/// leads to it. How many there are; 0 when it cannot be done.
std::size_t trust_when_met(ssl_ctx_st* context, std::string const& pem);

/// The oldest entry of OpenSSL's error queue as text, which is emptied.
std::string openssl_error();

}  // namespace tls
