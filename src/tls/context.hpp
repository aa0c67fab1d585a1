#pragma once

#include "tls/tls.hpp"

struct ssl_ctx_st;

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

/// The oldest entry of OpenSSL's error queue as text, which is emptied.
std::string openssl_error();

}  // namespace tls
