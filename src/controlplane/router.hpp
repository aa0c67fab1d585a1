#pragma once

#include "http/message.hpp"
#include "http/server.hpp"
#include "store/keys.hpp"

#include <boost/json/value.hpp>

/// The public API as data: one table of routes that the front (front.hpp) serves, that
/// api/openapi.yaml is compared with, and that the tenancy test is generated from. A handler gets a
/// request that is authenticated, permitted, rate-limited, within its body limit and, where the
/// table says so, idempotent; it returns an answer or an error, and the front renders both.
namespace controlplane {

namespace asio = boost::asio;
namespace json = boost::json;

/// Whose spelling of errors and ids a route speaks.
enum class Dialect : std::uint8_t {
  native,  // {"code":"not_found","message":"…","request_id":"…"}
  e2b,     // {"code":404,"message":"…"}
};

enum class Permission : std::uint8_t {
  open,          // no key needed
  read,          // any role
  write,         // member or admin
  admin,         // admin of the key's own project
  installation,  // a key of the installation: organisations, projects, nodes
};

/// What the front does about Idempotency-Key on a POST.
enum class Repeat : std::uint8_t {
  replay,   // the front keeps the answer and replays it
  handler,  // the handler's own transaction takes care (operations.idempotency_key)
  none,     // not a POST, or a stream
};

/// One request on its way through a handler. Lives as long as the handler runs.
struct Call {
  http::Request& request;
  http::ResponseWriter& response;
  std::string request_id;
  store::KeyOwner owner;                                    // empty on open routes
  std::vector<std::pair<std::string, std::string>> params;  // of the pattern, percent-decoded
  std::vector<std::pair<std::string, std::string>> query;   // decoded
  std::string body;             // whole, unless the route streams its body
  std::string request_sha256;   // of method, target and body; for idempotency
  std::string idempotency_key;  // "" when there is none
  base::Deadline deadline;      // for everything but waiting and streaming
  http::Headers extra_headers;  // for a head that the handler writes itself (streams)
  /// Set by a handler before it asks for what must not happen twice: from then on an error does not
  /// tell whether it did, and a repeat with the same Idempotency-Key is refused.
  bool may_have_happened = false;

  /// A parameter of the pattern; must exist.
  std::string const& param(std::string_view name) const;
  /// The first query parameter of that name.
  std::optional<std::string> query_value(std::string_view name) const;
  /// invalid_argument naming the first query parameter that is not in `names`: an unknown filter
  /// must not return everything.
  base::Result<void> allow_query(std::initializer_list<std::string_view> names) const;
};

/// A finished answer.
struct Reply {
  int status = 200;
  http::Headers headers;
  std::string body;  // JSON unless headers carry another Content-Type; "" for 204
  std::optional<std::string>
      kept_body;  // what a replay shows instead of `body` (answers with secrets)
  /// The handler wrote the answer itself, through call.response.
  bool streamed = false;
};

Reply json_reply(int status, json::value const& value);
Reply empty_reply(int status = 204);
Reply streamed_reply();

using Handler = std::function<async::Task<Reply>(Call&)>;

struct Route {
  std::string method;
  /// "/v1/sandboxes/{id}/events"; a last `{name*}` segment, or one in the middle, takes any number
  /// of segments (at least one): "/templates/{id*}/tags".
  std::string pattern;
  std::string
      operation_id;  // of api/openapi.yaml; "" for routes that are documented elsewhere (E2B)
  Dialect dialect = Dialect::native;
  Permission permission = Permission::read;
  Repeat repeat = Repeat::none;
  std::size_t body_max = 1 << 20;
  bool streams_body = false;  // the handler reads call.request.body itself
  Handler handler;
};

class Router {
 public:
  /// Two routes of the same method that match the same paths are a bug and assert; of overlapping
  /// ones the one with the literal segment wins.
  void add(Route route);

  std::vector<Route> const& routes() const noexcept { return routes_; }

  struct Match {
    Route const* route = nullptr;  // null: nothing has this path and method
    std::vector<std::pair<std::string, std::string>> params;
    /// Methods that this path has, for 405 and Allow; empty: unknown path. HEAD where there is GET.
    std::vector<std::string> allowed;
    Dialect dialect = Dialect::native;  // by the path, also when nothing matched
  };

  /// `path` as on the wire; HEAD finds the route of GET. invalid_argument for a broken percent
  /// escape.
  base::Result<Match> match(std::string_view method, std::string_view path) const;

 private:
  std::vector<Route> routes_;
};

/// "sandbox" of a body: decodes with unknown fields rejected (native) or ignored (E2B), errors name
/// the field. An empty body counts as {}.
base::Result<json::value> body_of(Call const& call);

}  // namespace controlplane
