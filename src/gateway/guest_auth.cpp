#include "gateway/guest_auth.hpp"

#include "domain/egress_policy.hpp"

namespace gateway {
namespace {

constexpr std::string_view carrier_headers[] = {
    "authorization",
    "proxy-authorization",
    "cookie",
    "x-api-key",
    "api-key",
    "apikey",
    "x-auth-token",
    "x-access-token",
    "access-token",
    "x-goog-api-key",
    "private-token",
    "job-token",
    "x-gitlab-token",
    "x-github-token",
    "openai-organization",
    "openai-project",
    "x-amz-security-token",
    "x-ms-token-aad-access-token",
};

constexpr std::string_view carrier_parameters[] = {
    "api_key",
    "apikey",
    "api-key",
    "key",
    "access_token",
    "auth_token",
    "token",
    "private_token",
    "client_secret",
    "x-amz-credential",
    "x-amz-signature",
    "x-amz-security-token",
    "sig",
};

/// With these a server behind a careless front takes another path, host or method than the one that
/// was judged.
constexpr std::string_view rewrite_headers[] = {
    "forwarded",
    "x-forwarded-host",
    "x-forwarded-proto",
    "x-forwarded-prefix",
    "x-forwarded-path",
    "x-forwarded-uri",
    "x-forwarded-server",
    "x-host",
    "x-original-host",
    "x-original-uri",
    "x-original-url",
    "x-override-url",
    "x-rewrite-url",
    "x-http-method",
    "x-http-method-override",
    "x-method-override",
};

struct Profile {
  std::string_view host;    // exact, or ".suffix"
  std::string_view method;  // "" = any
  std::string_view glob;
};

// GitHub: app tokens, personal tokens, keys, hooks, secrets of repositories. OpenAI- and
// Anthropic-like APIs: keys and organisation administration.
constexpr Profile minting[] = {
    {"api.github.com", "POST", "/app/installations/*/access_tokens"},
    {"api.github.com", "", "/applications/**"},
    {"api.github.com", "POST", "/user/keys"},
    {"api.github.com", "POST", "/user/gpg_keys"},
    {"api.github.com", "POST", "/repos/*/*/keys"},
    {"api.github.com", "POST", "/repos/*/*/hooks"},
    {"api.github.com", "", "/repos/*/*/actions/secrets/**"},
    {"api.github.com", "POST", "/repos/*/*/actions/runners/registration-token"},
    {"api.github.com", "POST", "/orgs/*/actions/runners/registration-token"},
    {"api.github.com", "POST", "/authorizations"},
    {"github.com", "POST", "/login/oauth/**"},
    {"api.openai.com", "", "/v1/organization/**"},
    {"api.openai.com", "", "/v1/dashboard/**"},
    {"api.anthropic.com", "", "/v1/organizations/**"},
};

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return out;
}

template <std::size_t n> bool contains(std::string_view const (&list)[n], std::string_view name) {
  return std::ranges::find(list, name) != std::end(list);
}

/// Percent-decodes for comparison only.
std::string decoded(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    auto const digit = [](char c) {
      return c >= '0' && c <= '9'   ? c - '0'
             : c >= 'a' && c <= 'f' ? c - 'a' + 10
             : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                    : -1;
    };
    if (text[i] == '%' && i + 2 < text.size() && digit(text[i + 1]) >= 0 &&
        digit(text[i + 2]) >= 0) {
      out += static_cast<char>(digit(text[i + 1]) << 4 | digit(text[i + 2]));
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

}  // namespace

void strip_guest_auth(RequestHead& head) {
  std::erase_if(head.fields,
                [](Field const& field) { return contains(carrier_headers, lower(field.name)); });
  if (!head.query) return;
  std::string kept;
  std::string_view rest = *head.query;
  while (true) {
    auto const end = rest.find('&');
    auto const pair = rest.substr(0, end);
    if (!contains(carrier_parameters, lower(decoded(pair.substr(0, pair.find('=')))))) {
      kept += (kept.empty() ? "" : "&") + std::string(pair);
    }
    if (end == std::string_view::npos) break;
    rest.remove_prefix(end + 1);
  }
  if (kept.empty()) {
    head.query.reset();
  } else {
    head.query = std::move(kept);
  }
}

void strip_rewrites(RequestHead& head) {
  std::erase_if(head.fields,
                [](Field const& field) { return contains(rewrite_headers, lower(field.name)); });
}

bool mints_credentials(std::string_view host, std::string_view method, std::string_view path) {
  // Servers forgive case, a slash at the end and needless escapes; a path that can be read in two
  // ways could be any of these endpoints.
  auto plain = lower(domain::plain_path(path));
  while (plain.size() > 1 && plain.ends_with('/'))
    plain.pop_back();
  return std::ranges::any_of(minting, [&](Profile const& profile) {
    if (host != profile.host || (!profile.method.empty() && profile.method != method)) return false;
    return domain::is_ambiguous_path(path) || domain::path_matches(profile.glob, plain);
  });
}

}  // namespace gateway
