#include "controlplane/native.hpp"

#include <charconv>

namespace controlplane {
namespace {

using base::Code;

constexpr std::chrono::milliseconds chunk_patience{60'000};

struct MakeBody {
  std::string path;
  std::string user;
  std::optional<std::uint32_t> mode;

  static bool required(std::string_view name) { return name == "path"; }
};
BOOST_DESCRIBE_STRUCT(MakeBody, (), (path, user, mode))

struct MoveBody {
  std::string source;
  std::string destination;
  std::string user;

  static bool required(std::string_view name) { return name != "user"; }
};
BOOST_DESCRIBE_STRUCT(MoveBody, (), (source, destination, user))

base::Result<void> check_path(std::string_view name, std::string_view path) {
  if (!path.empty() && path.size() <= 4096 && path.find('\0') == std::string_view::npos) return {};
  return base::fail(Code::invalid_argument,
                    fmt::format("{}: expected 1 to 4096 bytes without NUL", name));
}

base::Result<void> check_user(std::string_view user) {
  if (user.size() <= 256 && user.find(':') == std::string_view::npos &&
      user.find('\0') == std::string_view::npos)
    return {};
  return base::fail(Code::invalid_argument, "user: expected the name of a user");
}

/// Permission bits as an entry tells them. No more: a set-id bit is nothing that travels.
base::Result<void> check_mode(std::optional<std::uint32_t> mode) {
  if (!mode || *mode <= 0777) return {};
  return base::fail(Code::invalid_argument, "mode: expected 0 to 511");
}

base::Result<std::optional<std::uint32_t>> mode_of(Call const& call) {
  auto const text = call.query_value("mode");
  if (!text) return std::optional<std::uint32_t>();
  std::uint32_t mode = 0;
  auto const [end, error] = std::from_chars(text->data(), text->data() + text->size(), mode);
  if (error != std::errc() || end != text->data() + text->size()) mode = 07777;  // none at all
  if (auto ok = check_mode(mode); !ok) return base::passing(ok);
  return std::optional(mode);
}

struct PathAndUser {
  std::string path;
  std::string user;
};

base::Result<PathAndUser> path_of(Call const& call) {
  PathAndUser out;
  auto path = call.query_value("path");
  if (!path) return base::fail(Code::invalid_argument, "path: required");
  out.path = std::move(*path);
  out.user = call.query_value("user").value_or("");
  if (auto ok = check_path("path", out.path); !ok) return base::passing(ok);
  if (auto ok = check_user(out.user); !ok) return base::passing(ok);
  return out;
}

GuestCall filesystem_call(std::string_view method, json::object message, std::string user) {
  GuestCall call;
  call.method = "filesystem.Filesystem/" + std::string(method);
  call.message = std::move(message);
  call.user = std::move(user);
  return call;
}

void copy_text(json::object& out,
               std::string_view to,
               json::object const& from,
               std::string_view name) {
  auto const* value = from.if_contains(name);
  auto const* text = value ? value->if_string() : nullptr;
  if (text) out[to] = printable(*text, 8192);
}

void copy_number(json::object& out,
                 std::string_view to,
                 json::object const& from,
                 std::string_view name) {
  auto const* value = from.if_contains(name);
  if (!value) return;
  if (auto const* text = value->if_string()) {
    std::uint64_t number = 0;
    auto const [end, error] = std::from_chars(text->data(), text->data() + text->size(), number);
    if (error == std::errc() && end == text->data() + text->size()) out[to] = number;
  } else if (value->is_int64() && value->get_int64() >= 0) {
    out[to] = value->get_int64();
  }
}

/// The agent's EntryInfo in our words; nothing when it has no name and path.
std::optional<json::object> entry_view(json::value const& value) {
  auto const* entry = value.if_object();
  if (!entry) return std::nullopt;
  json::object out;
  copy_text(out, "name", *entry, "name");
  copy_text(out, "path", *entry, "path");
  if (!out.contains("name") || !out.contains("path")) return std::nullopt;
  json::object type;
  copy_text(type, "type", *entry, "type");
  auto const* name = type.if_contains("type");
  std::string_view const said = name ? std::string_view(name->get_string()) : std::string_view();
  std::string_view kind = "other";
  if (said == "FILE_TYPE_FILE") kind = "file";
  if (said == "FILE_TYPE_DIRECTORY") kind = "directory";
  if (said == "FILE_TYPE_SYMLINK") kind = "symlink";
  out["type"] = kind;
  copy_number(out, "size", *entry, "size");
  copy_number(out, "mode", *entry, "mode");
  copy_text(out, "permissions", *entry, "permissions");
  copy_text(out, "owner", *entry, "owner");
  copy_text(out, "group", *entry, "group");
  copy_text(out, "modified_at", *entry, "modifiedTime");
  copy_text(out, "symlink_target", *entry, "symlinkTarget");
  return out;
}

base::Result<Reply> entry_reply(int status, base::Result<json::object> answer) {
  if (!answer) return base::passing(answer);
  auto const* entry = answer->if_contains("entry");
  auto view = entry ? entry_view(*entry) : std::nullopt;
  if (!view) return base::fail(Code::unavailable, "the sandbox sent an answer that cannot be read");
  return json_reply(status, *view);
}

/// Only digits: anything else would let a guest write our headers.
std::string digits_of(std::string_view text) {
  bool const good = !text.empty() && text.size() <= 18 &&
                    std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
  return good ? std::string(text) : std::string();
}

bool is_content_range(std::string_view text) {
  return text.starts_with("bytes ") && text.size() < 80 &&
         std::ranges::all_of(
             text.substr(6),
             [](char c) { return (c >= '0' && c <= '9') || c == '-' || c == '/' || c == '*'; });
}

}  // namespace

async::Task<Reply> Native::read_file(Call& call) {
  auto target = co_await guest_of(call);
  if (!target) co_return base::passing(target);
  if (auto ok = call.allow_query({"path", "user"}); !ok) co_return base::passing(ok);
  auto place = path_of(call);
  if (!place) co_return base::passing(place);
  auto const range = std::string(call.request.head.headers.get("range").substr(0, 200));
  auto exchange = co_await guests_.read_file(
      std::move(*target), place->path, place->user, range, call.deadline);
  if (!exchange) co_return base::passing(exchange);
  http::ResponseHead head;
  head.status = (*exchange)->head.status == 206 ? 206 : 200;
  head.headers = call.extra_headers;
  // Never a type that a browser would run: the bytes are a guest's.
  head.headers.add("Content-Type", "application/octet-stream");
  head.headers.add("X-Content-Type-Options", "nosniff");
  head.headers.add("Accept-Ranges", "bytes");
  auto const length = digits_of((*exchange)->head.headers.get("content-length"));
  if (!length.empty()) head.headers.add("Content-Length", length);
  auto const content_range = (*exchange)->head.headers.get("content-range");
  if (head.status == 206 && is_content_range(content_range))
    head.headers.add("Content-Range", std::string(content_range));
  auto begun = co_await call.response.begin(std::move(head));
  if (!begun) co_return base::passing(begun);
  if (is_head_only(call)) co_return co_await finish_stream(call);
  std::vector<char> chunk(64 << 10);
  for (;;) {
    auto reading = (*exchange)->body().read_some(chunk);
    auto got =
        co_await async::with_deadline(base::system_clock().in(chunk_patience), std::move(reading));
    if (!got)
      co_return base::passing(got, "read the file");  // the answer is cut, which the client notices
    if (*got == 0) break;
    auto sent = co_await call.response.write(std::string_view(chunk.data(), *got));
    if (!sent) co_return base::passing(sent);
  }
  co_return co_await finish_stream(call);
}

async::Task<Reply> Native::write_file(Call& call) {
  auto target = co_await guest_of(call);
  if (!target) co_return base::passing(target);
  if (auto ok = call.allow_query({"path", "user", "mode"}); !ok) co_return base::passing(ok);
  auto place = path_of(call);
  if (!place) co_return base::passing(place);
  auto mode = mode_of(call);
  if (!mode) co_return base::passing(mode);
  std::optional<std::string> length;
  if (auto const said = call.request.head.headers.find("content-length"))
    length = std::string(*said);
  auto upload = co_await guests_.begin_write(
      std::move(*target), place->path, place->user, *mode, std::move(length), call.deadline);
  if (!upload) co_return base::passing(upload);
  std::vector<char> chunk(64 << 10);
  for (;;) {
    auto reading = call.request.body.read_some(chunk);
    auto got =
        co_await async::with_deadline(base::system_clock().in(chunk_patience), std::move(reading));
    if (!got) co_return base::passing(got, "read the body");
    if (*got == 0) break;
    auto writing = (*upload)->write(std::string_view(chunk.data(), *got));
    auto sent =
        co_await async::with_deadline(base::system_clock().in(chunk_patience), std::move(writing));
    // The guest stopped reading: it has said why already, or is gone.
    if (!sent) break;
  }
  auto written = co_await (*upload)->finish(base::system_clock().in(chunk_patience));
  if (!written) co_return base::passing(written);
  json::object view;
  for (auto const* name : {"name", "type", "path"})
    copy_text(view, name, *written, name);
  co_return json_reply(200, view);
}

async::Task<Reply> Native::remove_file(Call& call) {
  auto target = co_await guest_of(call);
  if (!target) co_return base::passing(target);
  if (auto ok = call.allow_query({"path", "user"}); !ok) co_return base::passing(ok);
  auto place = path_of(call);
  if (!place) co_return base::passing(place);
  auto answer =
      co_await guests_.unary(std::move(*target),
                             filesystem_call("Remove", {{"path", place->path}}, place->user),
                             call.deadline);
  if (!answer) co_return base::passing(answer);
  co_return empty_reply(204);
}

async::Task<Reply> Native::stat_file(Call& call) {
  auto target = co_await guest_of(call);
  if (!target) co_return base::passing(target);
  if (auto ok = call.allow_query({"path", "user"}); !ok) co_return base::passing(ok);
  auto place = path_of(call);
  if (!place) co_return base::passing(place);
  auto answer =
      co_await guests_.unary(std::move(*target),
                             filesystem_call("Stat", {{"path", place->path}}, place->user),
                             call.deadline);
  co_return entry_reply(200, std::move(answer));
}

async::Task<Reply> Native::list_files(Call& call) {
  auto target = co_await guest_of(call);
  if (!target) co_return base::passing(target);
  if (auto ok = call.allow_query({"path", "user", "depth"}); !ok) co_return base::passing(ok);
  auto place = path_of(call);
  if (!place) co_return base::passing(place);
  auto const text = call.query_value("depth").value_or("1");
  std::uint32_t depth = 0;
  auto const [end, error] = std::from_chars(text.data(), text.data() + text.size(), depth);
  if (error != std::errc() || end != text.data() + text.size() || depth < 1 || depth > 64) {
    co_return base::fail(Code::invalid_argument, "depth: expected 1 to 64");
  }
  auto answer = co_await guests_.unary(
      std::move(*target),
      filesystem_call("ListDir", {{"path", place->path}, {"depth", depth}}, place->user),
      call.deadline);
  if (!answer) co_return base::passing(answer);
  json::array entries;
  auto const* listed = answer->if_contains("entries");
  if (listed && listed->is_array()) {
    for (auto const& one : listed->get_array()) {
      if (auto view = entry_view(one)) entries.push_back(std::move(*view));
    }
  }
  co_return json_reply(200, json::object{{"entries", std::move(entries)}});
}

async::Task<Reply> Native::make_directory(Call& call) {
  auto target = co_await guest_of(call);
  if (!target) co_return base::passing(target);
  auto body = decode_body<MakeBody>(call);
  if (!body) co_return base::passing(body);
  if (auto ok = check_path("path", body->path); !ok) co_return base::passing(ok);
  if (auto ok = check_user(body->user); !ok) co_return base::passing(ok);
  if (auto ok = check_mode(body->mode); !ok) co_return base::passing(ok);
  json::object message{{"path", body->path}};
  if (body->mode) message["mode"] = *body->mode;
  auto answer = co_await guests_.unary(std::move(*target),
                                       filesystem_call("MakeDir", std::move(message), body->user),
                                       call.deadline);
  co_return entry_reply(201, std::move(answer));
}

async::Task<Reply> Native::move_file(Call& call) {
  auto target = co_await guest_of(call);
  if (!target) co_return base::passing(target);
  auto body = decode_body<MoveBody>(call);
  if (!body) co_return base::passing(body);
  if (auto ok = check_path("source", body->source); !ok) co_return base::passing(ok);
  if (auto ok = check_path("destination", body->destination); !ok) co_return base::passing(ok);
  if (auto ok = check_user(body->user); !ok) co_return base::passing(ok);
  json::object message{{"source", body->source}, {"destination", body->destination}};
  auto answer = co_await guests_.unary(
      std::move(*target), filesystem_call("Move", std::move(message), body->user), call.deadline);
  co_return entry_reply(200, std::move(answer));
}

}  // namespace controlplane
