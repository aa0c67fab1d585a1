#pragma once

#include <optional>
#include <string>
#include <string_view>

/// What the web servers of the self-test's internet say: to most requests "hello", to some what
/// breaks the protocol, or the credential that came with them. Careless on purpose; no I/O.
namespace cli::selftest {

/// What `space selftest egress` plants as a credential of its own installation.
inline constexpr std::string_view planted_credential = "planted-credential-0123456789";

struct Request {
  std::string path;
  std::string head;
};

/// Takes the first whole request, with its body, off what was received.
std::optional<Request> take_request(std::string& received);

/// The value of a field; "" when it is not there.
std::string field_of(Request const& request, std::string_view name);

struct Answer {
  std::string text;
  bool last = false;      // the connection is closed behind it
  bool switched = false;  // what follows is no HTTP any more
};

Answer answer_to(Request const& request);

/// By the catalogue's name of the kind; nothing when there is none of that name.
std::optional<Answer> hostile_answer(std::string_view kind);
/// `value` in an encoding by the catalogue's name of it.
std::optional<std::string> encoded_as(std::string_view form, std::string_view value);

}  // namespace cli::selftest
