#include "proxy/reply.hpp"

#include "wire/codec.hpp"

namespace proxy {
namespace {

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

/// A browser that goes to a page; not a script in a page, and not a program that asks for JSON.
bool is_person(http::Headers const& headers) {
  if (!contains(headers.get("User-Agent"), "Mozilla/")) return false;
  if (contains(headers.get("Accept"), "application/json")) return false;
  auto const mode = headers.find("Sec-Fetch-Mode");
  return !mode || *mode == "navigate";
}

std::string escaped(std::string_view text) {
  std::string out;
  for (char const c : text) {
    if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '&')
      out += "&amp;";
    else if (c == '"')
      out += "&quot;";
    else
      out += c;
  }
  return out;
}

/// A path may hold any byte above 0x20; JSON is UTF-8.
std::string ascii(std::string text) {
  std::ranges::replace_if(text, [](char c) { return static_cast<unsigned char>(c) >= 0x80; }, '?');
  return text;
}

std::string page(Reply const& reply) {
  std::string about;
  if (!reply.sandbox.empty())
    about += fmt::format("<p>Sandbox <code>{}</code>", escaped(reply.sandbox));
  if (!reply.sandbox.empty() && reply.port) about += fmt::format(", port {}", *reply.port);
  if (!about.empty()) about += "</p>";
  return fmt::format(
      "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
      "content=\"width=device-width\">"
      "<title>{0} {1}</title><style>body{{font:16px/1.5 system-ui,sans-serif;margin:15vh "
      "auto;max-width:34em;padding:0 1em;"
      "color-scheme:light dark}}</style></head><body><h1>{1}</h1><p>{2}</p>{3}</body></html>\n",
      reply.status,
      http::reason_of(reply.status),
      escaped(reply.message),
      about);
}

}  // namespace

http::Response render(Reply const& reply, http::RequestHead const& head) {
  http::Response out;
  out.status = reply.status;
  if (reply.retry_after_s > 0) out.headers.add("Retry-After", std::to_string(reply.retry_after_s));
  out.headers.add("Cache-Control", "no-store");
  if (is_person(head.headers)) {
    out.headers.add("Content-Type", "text/html; charset=utf-8");
    out.headers.add("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'");
    out.body = page(reply);
    return out;
  }
  wire::json::object body;
  if (reply.about_sandbox) body["sandboxId"] = reply.sandbox;
  body["message"] = reply.message;
  if (!reply.path.empty()) body["path"] = ascii(reply.path);
  if (reply.port) body["port"] = *reply.port;
  body["code"] = reply.status;
  out.headers.add("Content-Type", "application/json");
  out.body = wire::to_text(body);
  return out;
}

}  // namespace proxy
