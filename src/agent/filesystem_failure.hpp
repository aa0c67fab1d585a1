#pragma once

#include "agent/connect_rpc.hpp"

#include <expected>
#include <string>

namespace agent {

/// Why a file operation did not work: the kernel's error number, which both protocols translate,
/// and a sentence.
struct FileFailure {
  int error = 0;
  std::string message;
};

template <class T> class [[nodiscard]] FileResult : public std::expected<T, FileFailure> {
 public:
  using std::expected<T, FileFailure>::expected;

  FileResult()
      : std::expected<T, FileFailure>(std::unexpect, FileFailure{0, "no result was produced"}) {}
};

template <> class [[nodiscard]] FileResult<void> : public std::expected<void, FileFailure> {
 public:
  using std::expected<void, FileFailure>::expected;
  FileResult() = default;
};

inline std::unexpected<FileFailure> file_fail(int error, std::string message) {
  return std::unexpected(FileFailure{error, std::move(message)});
}

/// "open '/x': Permission denied"
std::unexpected<FileFailure> file_fail_errno(int error,
                                             std::string_view step,
                                             std::string_view path);

RpcError rpc_error_of(FileFailure const& failure);
/// 507 for a full disk, 404, 400, 403, 409, 503 for exhausted descriptors or memory, else 500.
int http_status_of(FileFailure const& failure) noexcept;

}  // namespace agent
