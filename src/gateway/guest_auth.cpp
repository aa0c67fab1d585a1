#include "gateway/guest_auth.hpp"

#include "domain/credential_profiles.hpp"

namespace gateway {
namespace {

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
                [](Field const& field) { return domain::is_carrier_header(lower(field.name)); });
  if (!head.query) return;
  std::string kept;
  std::string_view rest = *head.query;
  while (true) {
    auto const end = rest.find('&');
    auto const pair = rest.substr(0, end);
    if (!domain::is_carrier_parameter(lower(decoded(pair.substr(0, pair.find('=')))))) {
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

}  // namespace gateway
