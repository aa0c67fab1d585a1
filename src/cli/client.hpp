#pragma once

#include "cli/api.hpp"
#include "cli/output.hpp"

/// How a verb of the command line runs: against the API, on the process's loop, writing to an
/// Output.
namespace cli {

struct Global {
  bool as_json = false;
  std::string api_url;
  std::string key_file;
  std::string idempotency_key;  // of the first POST; "" = a fresh one
};

/// What a verb gets. The references outlive it.
struct Session {
  Api& api;
  Output const& out;
};

using Verb = std::function<asio::awaitable<int>(Session)>;

/// Finds the API, runs the verb on a loop of its own, returns its exit code. SIGINT and SIGTERM
/// cancel it.
int run_verb(Global const& global, Verb const& verb);

/// The usual time for one request.
base::Deadline in_a_minute();

/// "/v1/sandboxes/ID" with a percent-encoded part: ids are typed by people.
std::string path_of(std::string_view collection, std::string_view id, std::string_view below = {});

/// All pages of a list, up to `limit` items.
async::Task<json::array> list_all(Session session,
                                  std::string target,
                                  std::string member,
                                  std::size_t limit = 10'000);

/// "3m ago", "just now"; the text itself when it is no time. `now` in seconds since 1970.
std::string age_of(std::string_view rfc3339, std::int64_t now);
std::int64_t seconds_now();

}  // namespace cli
