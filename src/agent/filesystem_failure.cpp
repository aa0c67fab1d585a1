#include "agent/filesystem_failure.hpp"

#include "agent/path.hpp"

#include <cerrno>
#include <system_error>

namespace agent {

std::unexpected<FileFailure> file_fail_errno(int error,
                                             std::string_view step,
                                             std::string_view path) {
  if (error == ENOSPC || error == EDQUOT)
    return file_fail(error, fmt::format("{} '{}': not enough disk space available", step, path));
  return file_fail(error,
                   fmt::format("{} '{}': {}", step, path, std::generic_category().message(error)));
}

RpcError rpc_error_of(FileFailure const& failure) {
  auto const code = [&] {
    switch (failure.error) {
      case ENOENT:
        return RpcCode::not_found;
      case EEXIST:
        return RpcCode::already_exists;
      case EACCES:
      case EPERM:
      case EROFS:
        return RpcCode::permission_denied;
      case ENOTDIR:
      case EISDIR:
      case EINVAL:
      case ENAMETOOLONG:
      case ELOOP:
      case ENOTEMPTY:
      case ENXIO:
      case EOPNOTSUPP:
        return RpcCode::invalid_argument;
      case EBUSY:
      case ETXTBSY:
        return RpcCode::failed_precondition;
      case ENOSPC:
      case EDQUOT:
      case EFBIG:
      case EMFILE:
      case ENFILE:
      case ENOMEM:
        return RpcCode::resource_exhausted;
      default:
        return RpcCode::internal;
    }
  }();
  return {code, as_utf8(failure.message)};
}

int http_status_of(FileFailure const& failure) noexcept {
  if (failure.error == ENOSPC || failure.error == EDQUOT) return 507;
  if (failure.error == EMFILE || failure.error == ENFILE || failure.error == ENOMEM) return 503;
  if (failure.error == EBUSY || failure.error == ETXTBSY) return 409;
  return http_status_of(rpc_error_of(failure).code);
}

}  // namespace agent
