#pragma once

#include "http/message.hpp"

namespace http {

/// Appends "HTTP/1.1 200 OK\r\n" and the fields, without the empty line, leaving out the fields
/// that only the connection itself may set (Connection, Keep-Alive, Transfer-Encoding, and
/// Content-Length). False, and `out` is unchanged, when a field cannot be sent as it is (a line
/// break in it would be a second message).
bool append_response_head(std::string& out, int status, Headers const& headers);
/// The same for "GET /path HTTP/1.1\r\n"; Connection, Upgrade and Content-Length are the caller's
/// to send.
bool append_request_head(std::string& out, RequestHead const& head);
void append_field(std::string& out, std::string_view name, std::string_view value);
/// "1f\r\n" bytes "\r\n"
void append_chunk(std::string& out, std::string_view bytes);
/// {"code":400,"message":"…"}
std::string error_body(int status, std::string_view message);

}  // namespace http
