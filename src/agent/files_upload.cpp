#include "agent/files.hpp"
#include "agent/files_write.hpp"
#include "agent/gzip.hpp"
#include "agent/multipart.hpp"
#include "agent/path.hpp"

#include <algorithm>
#include <optional>
#include <vector>

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>

namespace agent {
namespace {

constexpr std::size_t read_bytes = 64 * 1024;
constexpr std::size_t step_bytes = 256 * 1024;
constexpr std::string_view metadata_prefix = "x-metadata-";
constexpr std::size_t metadata_key_bytes_max = 246;  // the kernel's 255 less "user.e2b."
constexpr std::size_t metadata_bytes_max = 4096;

/// The body of a request with its gzip taken off.
class BodySource {
 public:
  BodySource(http::BodyReader& body, bool gzip) : body_(body), buffer_(read_bytes) {
    if (gzip) gzip_ = std::make_unique<GzipDecoder>();
  }

  /// Some bytes, "" at the end.
  async::Task<std::string> next() {
    for (;;) {
      if (pending_.empty() && !more_) {
        auto const count = co_await body_.read_some(buffer_);
        if (!count) co_return std::unexpected(count.error());
        pending_ = std::string_view(buffer_.data(), *count);
        if (*count == 0) co_return end_of_body();
      }
      if (!gzip_) co_return std::string(std::exchange(pending_, {}));
      std::string decoded;
      auto const taken = gzip_->take(pending_, read_bytes, decoded);
      if (!taken) co_return std::unexpected(taken.error());
      more_ = decoded.size() == read_bytes;
      if (!decoded.empty()) co_return decoded;
    }
  }

 private:
  base::Result<std::string> end_of_body() const {
    if (gzip_ && !gzip_->complete())
      return base::fail(base::Code::invalid_argument, "the gzip body ends too early");
    return std::string();
  }

  http::BodyReader& body_;
  std::vector<char> buffer_;
  std::string_view pending_;
  bool more_ = false;  // the decoder may hold more than it gave
  std::unique_ptr<GzipDecoder> gzip_;
};

bool is_printable(std::string_view text) {
  return std::ranges::all_of(text, [](char one) { return one >= 0x20 && one < 0x7F; });
}

std::string lower_case(std::string_view text) {
  std::string lower(text);
  std::ranges::transform(lower, lower.begin(), [](char one) {
    return one >= 'A' && one <= 'Z' ? static_cast<char>(one + 32) : one;
  });
  return lower;
}

bool is_octet_stream(std::string_view content_type) {
  auto media = content_type.substr(0, content_type.find(';'));
  while (media.ends_with(' '))
    media.remove_suffix(1);
  return http::equal_ignoring_case(media, "application/octet-stream");
}

}  // namespace

base::Result<std::map<std::string, std::string>> metadata_headers(http::Headers const& headers) {
  std::map<std::string, std::string> metadata;
  std::size_t total = 0;
  for (auto const& [name, value] : headers) {
    if (!http::equal_ignoring_case(std::string_view(name).substr(0, metadata_prefix.size()),
                                   metadata_prefix))
      continue;
    auto key = lower_case(std::string_view(name).substr(metadata_prefix.size()));
    if (key.empty() || key.size() > metadata_key_bytes_max || !is_printable(key) ||
        !is_printable(value))
      return base::fail(
          base::Code::invalid_argument,
          fmt::format("metadata '{}': keys are 1 to {} and values any printable ASCII characters",
                      key,
                      metadata_key_bytes_max));
    total += key.size() + value.size();
    metadata.insert_or_assign(std::move(key), value);
  }
  if (total > metadata_bytes_max)
    return base::fail(base::Code::invalid_argument,
                      fmt::format("metadata is over {} bytes in all", metadata_bytes_max));
  return metadata;
}

/// One POST /files from its first byte to its answer.
class FilesHandler::Upload {
 public:
  Upload(Admitted admitted, std::map<std::string, std::string> metadata)
      : admitted_(std::move(admitted)), metadata_(std::move(metadata)) {}

  asio::awaitable<Answer<std::vector<std::string>>> run(http::Request& request) {
    auto const& headers = request.head.headers;
    auto const encoding = headers.get("content-encoding");
    bool const gzip = http::equal_ignoring_case(encoding, "gzip") ||
                      http::equal_ignoring_case(encoding, "x-gzip");
    if (!gzip && !encoding.empty() && !http::equal_ignoring_case(encoding, "identity"))
      co_return refused(
          400,
          fmt::format("error decompressing request body: unsupported Content-Encoding '{}'",
                      encoding));
    BodySource body(request.body, gzip);
    auto const type = headers.get("content-type");
    auto problem = std::optional<Refusal>();
    if (is_octet_stream(type)) {
      problem = co_await whole_body(body);
    } else if (auto const boundary = multipart_boundary(type)) {
      problem = co_await all_parts(body, *boundary);
    } else {
      problem = Refusal{400,
                        fmt::format("unsupported content type: {}, expected multipart/form-data or "
                                    "application/octet-stream",
                                    type)};
    }
    if (!problem) co_return std::move(done_);
    co_await discard();
    co_return std::unexpected(*std::move(problem));
  }

  /// An upload whose caller left is taken back like one that failed.
  asio::awaitable<void> discard() {
    if (!writer_) co_return;
    auto discarding = [this] {
      writer_->discard();
      return true;
    };
    co_await async::blocking(std::move(discarding));
    writer_.reset();
  }

 private:
  using Problem = std::optional<Refusal>;

  static std::unexpected<Refusal> refused(int status, std::string message) {
    return std::unexpected(Refusal{status, std::move(message)});
  }

  asio::awaitable<Problem> whole_body(BodySource& body) {
    if (!admitted_.has_path)
      co_return Refusal{400, "path query parameter is required for raw body upload"};
    auto problem = co_await open(admitted_.path);
    while (!problem) {
      auto const bytes = co_await body.next();
      if (!bytes) co_return broken_body(bytes.error());
      if (bytes->empty()) co_return co_await close();
      problem = co_await add(*bytes);
    }
    co_return problem;
  }

  asio::awaitable<Problem> all_parts(BodySource& body, std::string boundary) {
    MultipartParser parser(boundary);
    for (;;) {
      auto event = parser.next();
      if (!event)
        co_return Refusal{base::http_status_of(event.error().code()), event.error().message()};
      if (event->kind == MultipartParser::Kind::finished) co_return co_await read_over(body);
      if (event->kind == MultipartParser::Kind::need_more) {
        auto const bytes = co_await body.next();
        if (!bytes) co_return broken_body(bytes.error());
        if (bytes->empty())
          co_return Refusal{400, "error reading form: the multipart body ends too early"};
        parser.feed(*bytes);
        continue;
      }
      auto problem = co_await one_event(*std::move(event));
      if (problem) co_return problem;
    }
  }

  asio::awaitable<Problem> one_event(MultipartParser::Event event) {
    if (event.kind == MultipartParser::Kind::part_begins) {
      // Fields of other names are read over: a browser's form may have them.
      if (event.name != "file") co_return std::nullopt;
      auto path = path_of_part(event.filename);
      if (!path) co_return path.error();
      co_return co_await open(*std::move(path));
    }
    if (!writer_) co_return std::nullopt;
    if (event.kind == MultipartParser::Kind::content) co_return co_await add(event.content);
    co_return co_await close();
  }

  Answer<std::string> path_of_part(std::string const& filename) const {
    if (!admitted_.has_path && filename.empty())
      return refused(400,
                     "a part named 'file' needs a filename, or the request a path in its query");
    std::string path = admitted_.path;
    if (!admitted_.has_path) {
      auto resolved = resolve_path(filename, admitted_.user, admitted_.workdir);
      if (!resolved)
        return refused(400, fmt::format("error resolving path: {}", resolved.error().message()));
      path = *std::move(resolved);
    }
    if (std::ranges::find(done_, path) != done_.end())
      return refused(400,
                     fmt::format("you cannot upload multiple files to the same path '{}' in one "
                                 "upload request, only the first "
                                 "specified file was uploaded",
                                 path));
    return path;
  }

  asio::awaitable<Problem> open(std::string path) {
    auto opening = [path = std::move(path), user = admitted_.user]() mutable {
      return FileWriter::open(std::move(path), user);
    };
    auto opened = co_await async::blocking(std::move(opening));
    if (!opened) co_return refusal_of(opened.error());
    writer_.emplace(*std::move(opened));
    co_return std::nullopt;
  }

  asio::awaitable<Problem> add(std::string_view bytes) {
    gathered_ += bytes;
    if (gathered_.size() < step_bytes) co_return std::nullopt;
    co_return co_await flush();
  }

  asio::awaitable<Problem> flush() {
    if (gathered_.empty()) co_return std::nullopt;
    auto writing = [this] { return writer_->write(gathered_); };
    auto const written = co_await async::blocking(std::move(writing));
    gathered_.clear();
    if (!written) co_return refusal_of(written.error());
    co_return std::nullopt;
  }

  asio::awaitable<Problem> close() {
    auto problem = co_await flush();
    if (problem) co_return problem;
    auto finishing = [this] { return writer_->finish(metadata_, admitted_.mode); };
    auto const finished = co_await async::blocking(std::move(finishing));
    if (!finished) co_return refusal_of(finished.error());
    done_.push_back(writer_->path());
    writer_.reset();
    co_return std::nullopt;
  }

  /// What follows the closing boundary; a client would take it ill if we answered and closed before
  /// its last byte.
  asio::awaitable<Problem> read_over(BodySource& body) {
    for (;;) {
      auto const bytes = co_await body.next();
      if (!bytes) co_return broken_body(bytes.error());
      if (bytes->empty()) co_return std::nullopt;
    }
  }

  static Refusal broken_body(base::Error const& error) {
    auto const status =
        error.code() == base::Code::invalid_argument ? 400 : base::http_status_of(error.code());
    return {status, fmt::format("error reading the request body: {}", error.message())};
  }

  Admitted admitted_;
  std::map<std::string, std::string> metadata_;
  std::optional<FileWriter> writer_;
  std::string gathered_;
  std::vector<std::string> done_;
};

asio::awaitable<void> FilesHandler::upload(Admitted admitted,
                                           http::Request& request,
                                           http::ResponseWriter& response) const {
  auto metadata = metadata_headers(request.head.headers);
  if (!metadata) co_return co_await refuse(response, {400, metadata.error().message()});
  Upload upload(std::move(admitted), *metadata);
  auto const stored = co_await upload.run(request);
  if (!stored) co_return co_await refuse(response, stored.error());

  json::array answer;
  for (auto const& path : *stored) {
    // Exactly these keys: the SDK of the time makes a data class of them and fails on any other.
    json::object file{
        {"name", as_utf8(base_name(path))}, {"type", "file"}, {"path", as_utf8(path)}};
    if (!metadata->empty()) {
      json::object shown;
      for (auto const& [key, value] : *metadata)
        shown[key] = value;
      file["metadata"] = std::move(shown);
    }
    answer.push_back(std::move(file));
  }
  auto const sent = co_await response.send(json_answer(200, answer));
  static_cast<void>(sent);  // the caller left; nothing to do for it
}

}  // namespace agent
