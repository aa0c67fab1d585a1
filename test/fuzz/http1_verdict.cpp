#include "gateway/http1.hpp"

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>

#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>

// How the gateway reads each file of a folder, as a JSON line: what
// test/security/test_http1_differential.py compares with two other parsers. `http1_verdict
// request|response FOLDER`.

namespace {

std::string hex(std::string_view bytes) {
  std::string out;
  for (char const c : bytes)
    out += fmt::format("{:02x}", static_cast<unsigned char>(c));
  return out;
}

std::string_view name_of(gateway::Framing::Kind kind) {
  using Kind = gateway::Framing::Kind;
  return kind == Kind::none      ? "none"
         : kind == Kind::length  ? "length"
         : kind == Kind::chunked ? "chunked"
                                 : "until_close";
}

void read_body(std::string_view rest, gateway::Framing framing, boost::json::object& out) {
  out["framing"] = name_of(framing.kind);
  gateway::BodyDecoder decoder(framing);
  std::string body;
  while (!rest.empty() && !decoder.done()) {
    auto const used = decoder.decode(rest, body);
    if (!used) {
      out["body"] = "refused";
      return;
    }
    rest.remove_prefix(*used);
  }
  if (framing.kind == gateway::Framing::Kind::until_close)
    static_cast<void>(decoder.end_of_stream());
  out["body"] = decoder.done() ? hex(body) : "incomplete";
  out["rest"] = rest.size();
}

boost::json::object verdict(std::string_view text, bool request) {
  boost::json::object out;
  out["accepted"] = false;
  auto const length = gateway::head_length(text);
  if (!length || *length == 0) return out;
  if (request) {
    auto const head = gateway::parse_request_head(text.substr(0, *length), 80);
    if (!head) return out;
    out["accepted"] = true;
    out["method"] = head->method;
    out["target"] = head->path + (head->query ? "?" + *head->query : "");
    out["host"] = head->host->str();
    read_body(text.substr(*length), head->body, out);
  } else {
    auto const head = gateway::parse_response_head(text.substr(0, *length), "GET");
    if (!head) return out;
    out["accepted"] = true;
    out["status"] = head->status;
    if (head->status >= 200) read_body(text.substr(*length), head->body, out);
  }
  return out;
}

}  // namespace

int main(int argc, char** argv) {
  std::span<char*> const args(argv, static_cast<std::size_t>(argc));
  if (args.size() != 3) return 2;
  for (auto const& entry : std::filesystem::directory_iterator(args[2])) {
    std::ifstream file(entry.path(), std::ios::binary);
    std::string const bytes{std::istreambuf_iterator<char>(file), {}};
    auto out = verdict(bytes, std::string_view(args[1]) == "request");
    out["file"] = entry.path().filename().string();
    std::puts(boost::json::serialize(out).c_str());
  }
  return 0;
}
