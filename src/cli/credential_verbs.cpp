#include "cli/layout.hpp"
#include "cli/policy_verbs.hpp"
#include "http/message.hpp"

#include <cstring>

#include <unistd.h>

namespace cli {
namespace {

constexpr std::size_t value_bytes_max = 16 * 1024;

/// From the file, or all of stdin; one line end at the end is not part of it.
base::Result<std::string> read_value(Session session, std::string const& file) {
  std::string value;
  if (!file.empty()) {
    auto text = read_file(file, value_bytes_max + 2);
    if (!text) return base::passing(text);
    value = std::move(*text);
  } else {
    if (::isatty(STDIN_FILENO) == 1) session.out.note("Type the value, then Enter and Ctrl-D.");
    std::array<char, 4096> chunk{};
    for (;;) {
      auto const got = ::read(STDIN_FILENO, chunk.data(), chunk.size());
      if (got < 0) return base::fail_errno("read the value");
      if (got == 0) break;
      value.append(chunk.data(), static_cast<std::size_t>(got));
      if (value.size() > value_bytes_max + 2) break;
    }
    explicit_bzero(chunk.data(), chunk.size());
  }
  if (value.ends_with('\n')) value.pop_back();
  if (value.ends_with('\r')) value.pop_back();
  if (value.empty())
    return base::fail(base::Code::invalid_argument,
                      "the value is empty; give it on stdin, or with --file");
  return value;
}

template <class T> json::array array_of(std::vector<T> const& list) {
  json::array out;
  for (auto const& one : list)
    out.emplace_back(one);
  return out;
}

std::string path_of_credential(CredentialOptions const& options, std::string_view below = {}) {
  auto const scope = !options.of_template.empty()
                         ? "?template=" + http::percent_encode(options.of_template)
                     : options.organisation ? std::string("?scope=organisation")
                                            : std::string();
  return path_of("credentials", options.name, fmt::format("{}{}", below, scope));
}

int show_change(Session session, json::value const& answer) {
  if (session.out.as_json()) {
    session.out.document(answer);
    return 0;
  }
  session.out.line(fmt::format("{} version {} {}",
                               text_of(answer, "name"),
                               number_of(answer, "version"),
                               text_of(answer, "state")));
  int code = 0;
  if (auto const* sandboxes = member_of(answer, "sandboxes").if_array()) {
    for (auto const& one : *sandboxes) {
      auto const note = text_of(one, "note");
      session.out.note(note.empty()
                           ? fmt::format("in force on {}", text_of(one, "sandbox"))
                           : fmt::format("not in force on {}: {}", text_of(one, "sandbox"), note));
    }
  }
  return code;
}

asio::awaitable<int> change(Session session,
                            std::string method,
                            std::string target,
                            json::value body) {
  auto answer = co_await session.api.call(
      std::move(method), std::move(target), std::move(body), in_a_minute());
  if (!answer)
    co_return session.out.fail(answer.error(),
                               answer.error().code() == base::Code::not_found
                                   ? "See what there is: space credential list"
                                   : std::string_view());
  co_return show_change(session, *answer);
}

}  // namespace

asio::awaitable<int> credential_put(Session session, CredentialOptions options) {
  if (options.hosts.empty() && options.profile.empty())
    co_return session.out.fail(
        {base::Code::invalid_argument, "a credential needs --host, or a --profile that knows it"},
        "See the profiles: space credential profiles");
  auto value = read_value(session, options.file);
  if (!value) co_return session.out.fail(value.error());
  json::object binding;
  if (!options.hosts.empty()) binding["hosts"] = array_of(options.hosts);
  if (!options.ports.empty()) binding["ports"] = array_of(options.ports);
  if (!options.methods.empty()) binding["methods"] = array_of(options.methods);
  if (!options.paths.empty()) binding["paths"] = array_of(options.paths);
  if (!options.header.empty()) binding["header"] = options.header;
  if (!options.form.empty()) binding["form"] = options.form;
  if (!options.username.empty()) binding["username"] = options.username;
  if (options.requests_per_s > 0) binding["requests_per_s"] = options.requests_per_s;
  if (options.concurrent > 0) binding["concurrent"] = options.concurrent;
  if (options.requests_per_day > 0) binding["requests_per_day"] = options.requests_per_day;
  json::object body{{"value", *value}, {"binding", std::move(binding)}};
  explicit_bzero(value->data(), value->size());
  if (!options.profile.empty()) body["profile"] = options.profile;
  if (!options.projects.empty() || !options.sandboxes.empty())
    body["grants"] = json::object{{"projects", array_of(options.projects)},
                                  {"sandboxes", array_of(options.sandboxes)}};
  co_return co_await change(session, "PUT", path_of_credential(options), std::move(body));
}

asio::awaitable<int> credential_rotate(Session session, CredentialOptions options) {
  auto value = read_value(session, options.file);
  if (!value) co_return session.out.fail(value.error());
  json::object body{{"value", *value}};
  explicit_bzero(value->data(), value->size());
  co_return co_await change(session, "PUT", path_of_credential(options, "/value"), std::move(body));
}

asio::awaitable<int> credential_grant(Session session, CredentialOptions options) {
  json::object body{{"projects", array_of(options.projects)},
                    {"sandboxes", array_of(options.sandboxes)}};
  co_return co_await change(
      session, "PUT", path_of_credential(options, "/grants"), std::move(body));
}

asio::awaitable<int> credential_revoke(Session session, CredentialOptions options) {
  co_return co_await change(session, "POST", path_of_credential(options, "/revoke"), nullptr);
}

asio::awaitable<int> credential_release(Session session, CredentialOptions options) {
  co_return co_await change(session, "POST", path_of_credential(options, "/release"), nullptr);
}

asio::awaitable<int> credential_remove(Session session, CredentialOptions options) {
  co_return co_await change(session, "DELETE", path_of_credential(options), nullptr);
}

asio::awaitable<int> credential_list(Session session) {
  auto answer = co_await session.api.call("GET", "/v1/credentials", nullptr, in_a_minute());
  if (!answer) co_return session.out.fail(answer.error());
  if (session.out.as_json()) {
    session.out.document(*answer);
    co_return 0;
  }
  std::vector<std::vector<std::string>> rows;
  for (auto const& one : member_of(*answer, "credentials").as_array()) {
    auto const& binding = member_of(one, "binding");
    rows.push_back({text_of(one, "name"),
                    text_of(one, text_of(one, "template").empty() ? "scope" : "template"),
                    text_of(one, "state"),
                    fmt::format("{}", number_of(one, "version")),
                    joined(member_of(binding, "hosts")),
                    joined(member_of(binding, "paths")),
                    text_of(binding, "header"),
                    text_of(binding, "form")});
  }
  session.out.table({"NAME", "SCOPE", "STATE", "VERSION", "HOSTS", "PATHS", "HEADER", "FORM"},
                    rows);
  co_return 0;
}

asio::awaitable<int> credential_profiles(Session session) {
  auto answer = co_await session.api.call("GET", "/v1/credential-profiles", nullptr, in_a_minute());
  if (!answer) co_return session.out.fail(answer.error());
  if (session.out.as_json()) {
    session.out.document(*answer);
    co_return 0;
  }
  std::vector<std::vector<std::string>> rows;
  for (auto const& one : member_of(*answer, "profiles").as_array())
    rows.push_back({text_of(one, "name"),
                    joined(member_of(member_of(one, "binding"), "hosts")),
                    text_of(one, "what")});
  session.out.table({"NAME", "HOSTS", "WHAT"}, rows);
  co_return 0;
}

}  // namespace cli
