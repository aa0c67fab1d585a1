#pragma once

#include "agent/context.hpp"
#include "agent/files_access.hpp"
#include "agent/filesystem_failure.hpp"
#include "agent/users.hpp"
#include "http/server.hpp"

#include <sys/types.h>

#include <map>
#include <optional>

namespace agent {

/// GET, HEAD and POST /files: whole files in and out, streamed, with root's rights; what is made
/// belongs to the user that the query names. And POST /files/compose, which joins uploaded parts.
/// Checks token or signature of /files itself (compose is behind the router's check).
class FilesHandler final : public http::Handler {
 public:
  /// `context` outlives the handler.
  FilesHandler(asio::any_io_executor, Context const& context) : context_(context) {}

  asio::awaitable<void> handle(http::Request& request, http::ResponseWriter& response) override;

 private:
  /// An answer that is not the file: status and sentence.
  struct Refusal {
    int status = 400;
    std::string message;
  };
  template <class T> using Answer = std::expected<T, Refusal>;

  /// A request that may go on: who asks, and for which path.
  struct Admitted {
    User user;
    std::string path;  // resolved; for uploads without a path in the query: ""
    bool has_path = false;
    std::string workdir;
    std::optional<mode_t> mode;  // of what is uploaded
  };

  struct Stored {
    std::string path;
    std::map<std::string, std::string> metadata;
  };
  class Upload;

  static Refusal refusal_of(FileFailure const& failure);
  Answer<Admitted> admit(http::RequestHead const& head, FileOperation operation) const;
  asio::awaitable<void> refuse(http::ResponseWriter& response, Refusal refusal) const;
  asio::awaitable<void> download(Admitted admitted,
                                 http::Request& request,
                                 http::ResponseWriter& response) const;
  asio::awaitable<void> upload(Admitted admitted,
                               http::Request& request,
                               http::ResponseWriter& response) const;
  asio::awaitable<void> compose(http::Request& request, http::ResponseWriter& response) const;

  Context const& context_;
};

/// X-Metadata-<key>: <value> → key (lower case) and value. Printable ASCII, keys up to 246 bytes,
/// 4096 in all.
base::Result<std::map<std::string, std::string>> metadata_headers(http::Headers const& headers);

}  // namespace agent
