#include "agent/files.hpp"

#include "agent/connect_rpc.hpp"
#include "agent/path.hpp"

#include <charconv>
#include <optional>

namespace agent {
namespace {

struct Query {
  std::optional<std::string> path;
  std::optional<std::string> username;
  std::optional<std::string> signature;
  std::optional<std::int64_t> expiration;
  std::optional<mode_t> mode;
};

template <class Number> std::optional<Number> number_in(std::string_view text) {
  Number number = 0;
  auto const [end, problem] = std::from_chars(text.data(), text.data() + text.size(), number);
  bool const good = problem == std::errc() && end == text.data() + text.size();
  return good ? std::optional(number) : std::nullopt;
}

base::Result<Query> query_of(http::RequestHead const& head) {
  auto parameters = http::parse_query(head.query());
  if (!parameters) return base::passing(parameters);
  Query query;
  for (auto& [name, value] : *parameters) {
    if (name == "path" && !query.path) query.path = std::move(value);
    if (name == "username" && !query.username) query.username = std::move(value);
    if (name == "signature" && !query.signature) query.signature = std::move(value);
    if (name == "mode" && !query.mode) {
      query.mode = number_in<mode_t>(value);
      if (!query.mode || *query.mode > 0777)
        return base::fail(base::Code::invalid_argument, "mode: expected 0 to 511");
    }
    if (name != "signature_expiration" || query.expiration) continue;
    query.expiration = number_in<std::int64_t>(value);
    if (!query.expiration)
      return base::fail(base::Code::invalid_argument,
                        "signature_expiration: expected Unix seconds");
  }
  return query;
}

}  // namespace

FilesHandler::Refusal FilesHandler::refusal_of(FileFailure const& failure) {
  return {http_status_of(failure), failure.message};
}

FilesHandler::Answer<FilesHandler::Admitted> FilesHandler::admit(http::RequestHead const& head,
                                                                 FileOperation operation) const {
  auto query = query_of(head);
  if (!query) return std::unexpected(Refusal{400, query.error().message()});
  SignedRequest const signed_request{
      operation, query->path.value_or(""), query->username.value_or(""), query->expiration};
  auto refused = file_access_refused(context_.access_token,
                                     head.headers.find("x-access-token"),
                                     query->signature,
                                     signed_request,
                                     base::system_clock().wall_now());
  if (refused) return std::unexpected(Refusal{401, *std::move(refused)});

  bool const named = query->username && !query->username->empty();
  auto const name = named ? query->username : std::nullopt;
  auto user = find_caller(context_.etc_dir, name, context_.default_user);
  if (!user)
    return std::unexpected(Refusal{
        401, fmt::format("error looking up user '{0}': unknown user {0}", name.value_or(""))});
  auto path = resolve_path(query->path.value_or(""), *user, context_.default_workdir);
  if (!path) return std::unexpected(Refusal{400, path.error().message()});
  return Admitted{*std::move(user),
                  *std::move(path),
                  query->path.has_value(),
                  context_.default_workdir,
                  query->mode};
}

asio::awaitable<void> FilesHandler::refuse(http::ResponseWriter& response, Refusal refusal) const {
  auto const sent = co_await response.send(json_error(refusal.status, as_utf8(refusal.message)));
  static_cast<void>(sent);  // the caller left; nothing to do for it
}

asio::awaitable<void> FilesHandler::handle(http::Request& request, http::ResponseWriter& response) {
  if (request.head.path() == "/files/compose") co_return co_await compose(request, response);
  bool const writes = request.head.method == "POST";
  auto admitted = admit(request.head, writes ? FileOperation::write : FileOperation::read);
  if (!admitted) {
    co_await refuse(response, std::move(admitted.error()));
  } else if (writes) {
    co_await upload(*std::move(admitted), request, response);
  } else {
    co_await download(*std::move(admitted), request, response);
  }
}

}  // namespace agent
