#include "worker/api.hpp"

#include <boost/json/object.hpp>

/// The part of Api that changes sandboxes which are here.
namespace worker {

namespace json = boost::json;

namespace {

constexpr std::size_t body_bytes_max = 8 << 20;  // policy and credentials are in a restore's

http::Response json_response(int status, std::string body) {
  return {status, {{"Content-Type", "application/json"}}, std::move(body)};
}

template <class T> async::Task<T> read(http::Request* request) {
  auto const body = co_await request->body.read_all(body_bytes_max);
  if (!body) co_return std::unexpected(body.error());
  co_return wire::decode_text<T>(*body, wire::UnknownKeys::reject, body_bytes_max);
}

template <class T> async::Task<http::Response> respond(base::Result<T> result) {
  if (!result) co_return std::unexpected(std::move(result.error()));
  co_return json_response(200, wire::encode_text(*result));
}

}  // namespace

async::Task<http::Response> Api::change(http::Request* request, std::string id, std::string verb) {
  using What = Sandbox::Change::What;
  if (verb == "restore") co_return co_await restore(request, std::move(id));
  if (verb == "snapshot") co_return co_await snapshot(request, std::move(id));
  std::optional<What> what;
  if (verb == "pause") what = What::pause;
  if (verb == "resume") what = What::resume;
  if (verb == "suspend") what = What::suspend;
  if (!what) co_return base::fail(base::Code::not_found, "a worker has no such route");
  auto const life = co_await read<wire::Epoch>(request);
  if (!life) co_return std::unexpected(life.error());
  auto changed = co_await worker_.change(std::move(id), life->epoch, *what);
  co_return co_await respond(std::move(changed));
}

async::Task<http::Response> Api::restore(http::Request* request, std::string id) {
  auto wanted = co_await read<wire::StartSandbox>(request);
  if (!wanted) co_return std::unexpected(wanted.error());
  auto restored = co_await worker_.restore(id, std::move(*wanted));
  auto const sandbox = worker_.find(id);
  bool const lost = !restored && restored.error().code() == base::Code::internal && sandbox &&
                    !sandbox->entry().lost_reason.empty();
  if (!lost) co_return co_await respond(std::move(restored));
  // Nothing that the caller can repeat or change: the state itself is of no use.
  co_return json_response(422,
                          wire::to_text(json::object{{"code", "failed_precondition"},
                                                     {"message", sandbox->entry().lost_reason}}));
}

async::Task<http::Response> Api::snapshot(http::Request* request, std::string id) {
  auto wanted = co_await read<wire::TakeSnapshot>(request);
  if (!wanted) co_return std::unexpected(wanted.error());
  auto taken = co_await worker_.snapshot(std::move(id), std::move(*wanted));
  co_return co_await respond(std::move(taken));
}

async::Task<http::Response> Api::drain(http::Request* request) {
  auto const wanted = co_await read<wire::SetDrain>(request);
  if (!wanted) co_return std::unexpected(wanted.error());
  auto done = co_await worker_.set_drain(wanted->on);
  if (!done) co_return std::unexpected(std::move(done.error()));
  co_return json_response(200, wire::encode_text(worker_.report()));
}

/// `name`: what follows /snapshots.
async::Task<http::Response> Api::answer_snapshots(http::Request* request, std::string name) {
  auto const& method = request->head.method;
  if (name.empty() && method == "GET") {
    auto const found = co_await worker_.snapshots();
    if (!found) co_return std::unexpected(found.error());
    co_return json_response(200, wire::to_text(json::object{{"snapshots", wire::encode(*found)}}));
  }
  if (!name.starts_with('/') || method != "DELETE")
    co_return base::fail(base::Code::not_found, "a worker has no such route");
  auto removed = co_await worker_.remove_snapshot(name.substr(1));
  if (!removed) co_return std::unexpected(std::move(removed.error()));
  co_return http::Response{204, {}, {}};
}

}  // namespace worker
