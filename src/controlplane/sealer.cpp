#include "controlplane/sealer.hpp"

namespace controlplane {
namespace {

constexpr std::chrono::milliseconds broker_patience{5'000};

}  // namespace

Sealer::Sealer(boost::asio::any_io_executor executor, std::string broker_socket)
    : broker_(std::move(executor),
              [path = std::move(broker_socket)] { return net::connect_unix(path); }) {}

async::Task<wire::Sealed> Sealer::seal(wire::Seal request, base::Deadline deadline) {
  Wipe const wipe_value{request.value};
  http::RequestHead head{
      "POST", "/seal", {{"Host", "broker"}, {"Content-Type", "application/json"}}};
  auto const until = std::min(deadline, base::system_clock().in(broker_patience));
  auto text = wire::encode_text(request);
  Wipe const wipe_text{text};
  auto reply = co_await broker_.request(std::move(head), text, until);
  if (!reply)
    co_return base::fail(base::Code::unavailable,
                         "the credential broker cannot be reached; nothing was stored",
                         reply.error().message());
  if (reply->status != 200) {
    auto const said = wire::parse_json(reply->body);
    auto const* message =
        said && said->is_object() ? said->as_object().if_contains("message") : nullptr;
    co_return base::fail(base::code_of_http_status(reply->status),
                         message && message->is_string()
                             ? std::string(message->as_string())
                             : std::string("the broker refused the credential"));
  }
  co_return wire::decode_text<wire::Sealed>(reply->body, wire::UnknownKeys::ignore);
}

}  // namespace controlplane
