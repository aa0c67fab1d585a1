#include "agent/files.hpp"
#include "agent/files_negotiate.hpp"
#include "agent/gzip.hpp"
#include "agent/path.hpp"
#include "os/fd.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <memory>

#include <fcntl.h>
#include <unistd.h>

namespace agent {
namespace {

constexpr std::size_t step_bytes = 256 * 1024;
constexpr std::size_t sniffed_bytes = 512;
// Below, the frame of gzip costs more than it gains; above, the time of an emulated machine.
constexpr std::uint64_t compress_from_bytes = 1024;
constexpr std::uint64_t compress_to_bytes = 8 << 20;

struct Source {
  os::Fd file;
  std::uint64_t size = 0;
  std::int64_t modified = 0;
  std::string beginning;  // for guessing the type
  bool endless = false;   // of size 0 yet with content, as files of /proc are: read to the end
};

FileResult<Source> open_source(std::string const& path) {
  struct stat status{};
  if (::stat(path.c_str(), &status) != 0) {
    if (errno == ENOENT || errno == ENOTDIR)
      return file_fail(ENOENT, fmt::format("path '{}' does not exist", path));
    return file_fail_errno(errno, "look at", path);
  }
  if (S_ISDIR(status.st_mode))
    return file_fail(EISDIR, fmt::format("path '{}' is a directory", path));
  Source source{
      os::Fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY)), 0, 0, {}, false};
  if (!source.file || ::fstat(source.file.get(), &status) != 0)
    return file_fail_errno(errno, "open", path);
  if (!S_ISREG(status.st_mode))
    return file_fail(EINVAL, fmt::format("path '{}' is not a regular file", path));
  source.size = static_cast<std::uint64_t>(status.st_size);
  source.modified = status.st_mtim.tv_sec;
  source.beginning.resize(sniffed_bytes);
  auto const count =
      ::pread(source.file.get(), source.beginning.data(), source.beginning.size(), 0);
  if (count < 0) return file_fail_errno(errno, "read", path);
  source.beginning.resize(static_cast<std::size_t>(count));
  source.endless = source.size == 0 && count > 0;
  return source;
}

/// What a download sends, and how.
struct Plan {
  int status = 200;
  http::Headers headers;
  bool gzip = false;
  bool has_length = true;
  ByteRange range;
};

bool wants_gzip(AcceptedEncodings const& accepted,
                Source const& source,
                std::string_view type,
                bool plainly) {
  if (!accepted.gzip) return false;
  if (!accepted.identity) return true;
  if (plainly || source.endless) return false;
  if (accepted.only_gzip) return true;
  return is_compressible(type) && source.size >= compress_from_bytes &&
         source.size <= compress_to_bytes;
}

/// A Range counts only for the version that the client has a part of.
std::optional<std::string_view> valid_range(http::Headers const& asked, std::string_view modified) {
  auto const condition = asked.find("if-range");
  if (condition && *condition != modified) return std::nullopt;
  return asked.find("range");
}

Plan plan_download(Source const& source, std::string const& path, http::RequestHead const& head) {
  auto const& asked = head.headers;
  Plan plan;
  auto const type = content_type_of(path, source.beginning);
  auto const modified = http_date(source.modified);
  plan.headers = {{"content-type", type},
                  {"content-disposition", inline_disposition(base_name(path))},
                  {"vary", "Accept-Encoding"},
                  {"last-modified", modified},
                  {"accept-ranges", source.endless ? "none" : "bytes"}};
  auto const accepted = accepted_encodings(asked.find("accept-encoding"));
  // The length of what gzip would make is not known in advance, and HEAD is asked for the length.
  bool const plainly = head.method == "HEAD" || asked.find("range") || asked.find("if-range") ||
                       asked.find("if-modified-since");
  plan.gzip = wants_gzip(accepted, source, type, plainly);
  if (!plan.gzip && !accepted.identity) {
    plan.status = 406;
    return plan;
  }
  plan.range = {0, source.size};
  plan.has_length = !plan.gzip && !source.endless;
  if (plan.gzip) plan.headers.add("content-encoding", "gzip");
  if (!plan.has_length) return plan;
  if (asked.get("if-modified-since") == modified && !asked.find("range")) {
    plan.status = 304;
    return plan;
  }
  auto const range = range_of(valid_range(asked, modified), source.size);
  if (range.kind == RangeKind::unsatisfiable) {
    plan.status = 416;
    plan.headers.add("content-range", fmt::format("bytes */{}", source.size));
    return plan;
  }
  if (range.kind == RangeKind::part) {
    plan.status = 206;
    plan.range = range.range;
    plan.headers.add("content-range",
                     fmt::format("bytes {}-{}/{}",
                                 range.range.first,
                                 range.range.first + range.range.count - 1,
                                 source.size));
  }
  plan.headers.add("content-length", std::to_string(plan.range.count));
  return plan;
}

/// Reads the file in steps and turns each into bytes for the wire. Lives on the pool's threads, one
/// step at a time.
class Reader {
 public:
  Reader(os::Fd file, Plan const& plan)
      : file_(std::move(file)),
        at_(plan.range.first),
        left_(plan.range.count),
        to_end_(!plan.has_length) {
    if (plan.gzip) gzip_ = std::make_unique<GzipEncoder>();
  }

  /// The next bytes, "" at the end; nothing when the file became shorter than promised or cannot be
  /// read.
  std::optional<std::string> step() {
    std::string out;
    while (out.empty() && !ended_) {
      std::string bytes(to_end_ ? step_bytes : std::min<std::uint64_t>(step_bytes, left_), '\0');
      auto const count =
          bytes.empty() ? 0
                        : ::pread(file_.get(), bytes.data(), bytes.size(), static_cast<off_t>(at_));
      if (count < 0 && errno == EINTR) continue;
      if (count < 0 || (count == 0 && !to_end_ && left_ > 0)) return std::nullopt;
      bytes.resize(static_cast<std::size_t>(count));
      at_ += bytes.size();
      left_ -= to_end_ ? 0 : bytes.size();
      ended_ = count == 0;
      if (gzip_) {
        gzip_->add(bytes, ended_ ? GzipEncoder::Last::yes : GzipEncoder::Last::no, out);
      } else {
        out = std::move(bytes);
      }
    }
    return out;
  }

 private:
  os::Fd file_;
  std::uint64_t at_;
  std::uint64_t left_;
  bool to_end_;
  bool ended_ = false;
  std::unique_ptr<GzipEncoder> gzip_;
};

asio::awaitable<void> send_content(os::Fd file, Plan plan, http::ResponseWriter& response) {
  Reader reader(std::move(file), plan);
  auto begun = co_await response.begin({plan.status, std::move(plan.headers)});
  while (begun) {
    auto step = [&reader] { return reader.step(); };
    auto const bytes = co_await async::blocking(std::move(step));
    // Returning without finish() cuts the connection: the client must not take half a file for the
    // whole.
    if (!bytes) co_return;
    if (bytes->empty()) break;
    begun = co_await response.write(*bytes);
  }
  if (!begun) co_return;
  auto const finished = co_await response.finish();
  static_cast<void>(finished);  // the caller left; nothing to do for it
}

}  // namespace

asio::awaitable<void> FilesHandler::download(Admitted admitted,
                                             http::Request& request,
                                             http::ResponseWriter& response) const {
  auto opening = [path = admitted.path] { return open_source(path); };
  auto source = co_await async::blocking(std::move(opening));
  if (!source) co_return co_await refuse(response, refusal_of(source.error()));
  auto plan = plan_download(*source, admitted.path, request.head);
  if (plan.status == 406) {
    co_return co_await refuse(response,
                              {406, "no acceptable encoding: gzip and identity are available"});
  }
  if (plan.status == 200 || plan.status == 206) {
    if (request.head.method != "HEAD")
      co_return co_await send_content(std::move(source->file), std::move(plan), response);
  }
  auto const sent = co_await response.send({plan.status, std::move(plan.headers), {}});
  static_cast<void>(sent);  // the caller left; nothing to do for it
}

}  // namespace agent
