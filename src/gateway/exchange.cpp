#include "async/alarm.hpp"
#include "base/base64.hpp"
#include "domain/credential_profiles.hpp"
#include "gateway/gateway.hpp"
#include "gateway/guest_auth.hpp"
#include "gateway/http1.hpp"
#include "gateway/scrubber.hpp"
#include "net/block.hpp"

#include <boost/json/serialize.hpp>
#include <poll.h>

namespace gateway {
namespace {

using namespace std::chrono_literals;
using domain::Decision;

constexpr auto head_timeout = 30s;
constexpr auto idle_timeout = 300s;
constexpr auto connect_timeout = 10s;
constexpr auto response_timeout = 300s;
constexpr auto credential_pause = 250ms;
constexpr std::size_t buffer_bytes = 16 * 1024;
constexpr std::size_t path_shown_max = 256;

/// Reads a stream piecemeal and keeps what was read ahead.
class Reader {
 public:
  Reader(net::ByteStream& stream, std::string received)
      : stream_(stream), received_(std::move(received)) {}

  std::string_view received() const noexcept { return received_; }

  void consume(std::size_t count) { received_.erase(0, count); }

  std::string take_all() { return std::exchange(received_, {}); }

  /// False at the end of the stream.
  async::Task<bool> more() {
    net::Block buffer;
    auto const got = co_await stream_.read_some(buffer.span());
    if (!got) co_return std::unexpected(got.error());
    received_.append(buffer.span().data(), *got);
    co_return *got > 0;
  }

  /// A whole head, taken out of the buffer; "" when the peer closed between messages.
  async::Task<std::string> head() {
    while (true) {
      auto const length = head_length(received_);
      if (!length) co_return std::unexpected(length.error());
      if (*length > 0) {
        auto text = received_.substr(0, *length);
        consume(*length);
        co_return text;
      }
      auto const alive = co_await more();
      if (!alive) co_return std::unexpected(alive.error());
      if (!*alive && received_.empty()) co_return std::string();
      if (!*alive)
        co_return base::fail(base::Code::unavailable,
                             "the connection ended in the middle of a head");
    }
  }

 private:
  net::ByteStream& stream_;
  std::string received_;
};

struct Upstream {
  explicit Upstream(Dialer::Connected connected)
      : stream(std::move(connected.stream)),
        address(to_text(connected.address)),
        reader(*stream, {}) {}

  net::Stream stream;
  std::string address;
  std::string tls;  // version
  Reader reader;
};

/// What one request carries besides itself.
struct Injected {
  struct One {
    std::string id;  // id/version, for the audit
    std::string name;
    bool told = false;  // that it came back
  };

  std::vector<One> all;
  std::unique_ptr<Scrubber> scrubber;  // of all, in their order; null where there are none
};

/// What an answer must not show of a header: what follows its scheme, all of it, for a secret may
/// have spaces; and of Basic the password too, as a server that has decoded it may say it.
std::vector<std::string> secrets_of(std::string_view value) {
  auto const last = value.rfind(' ') + 1;
  std::vector<std::string> out{std::string(value.substr(last))};
  if (!value.starts_with("Basic ")) {
    auto const begin = value.starts_with("Bearer ") ? value.find(' ') + 1 : 0;
    if (begin != last) out.emplace_back(value.substr(begin));
    return out;
  }
  auto pair = base::base64_decoded(out.front());
  if (pair) out.push_back(pair->substr(pair->find(':') + 1));
  return out;
}

bool is_scannable(ResponseHead const& head) {
  auto const* encoding = head.find("content-encoding");
  return !encoding || *encoding == "identity";
}

/// What a query asks by name: "a=1&b=2" → "a,b". What has no '=' may be a value: it is not told.
std::string names_in_query(std::string_view query) {
  std::string out;
  while (!query.empty() && out.size() < path_shown_max) {
    auto const item = query.substr(0, query.find('&'));
    auto const name = item.substr(0, item.find('='));
    out += out.empty() ? "" : ",";
    out += name.size() < item.size() ? name : "?";
    query.remove_prefix(std::min(query.size(), item.size() + 1));
  }
  if (out.size() > path_shown_max) out.resize(path_shown_max);
  return out;
}

class HttpServer {
 public:
  HttpServer(
      Gateway& gateway, LiveFlow& flow, net::ByteStream& guest, std::string received, bool tls)
      : gateway_(gateway),
        flow_(flow),
        guest_(guest),
        reader_(guest, std::move(received)),
        tls_(tls),
        silence_(gateway.executor(), [this] { awaited_->close(); }) {}

  asio::awaitable<void> run() {
    while (true) {
      close_at(guest_, first_ ? head_timeout : idle_timeout);
      auto text = co_await reader_.head();
      silence_.cancel();
      first_ = false;
      if (!text && text.error().code() == base::Code::invalid_argument) {
        begin_record();
        co_await refuse(400, "malformed_request", text.error().message());
      }
      if (!text || text->empty()) co_return;
      begin_record();
      auto head = parse_request_head(*text, flow_.port);
      if (!head) {
        co_await refuse(400, "malformed_request", head.error().message());
        co_return;
      }
      bool const go_on = co_await serve(std::move(*head));
      flow_.request.reset();
      flow_.credentials.clear();
      if (!go_on) co_return;
    }
  }

 private:
  /// Whoever is silent for so long is closed, which ends the wait for it. An alarm costs nothing
  /// where a deadline around a coroutine costs more than the rest of a request.
  void close_at(net::ByteStream& awaited, std::chrono::seconds after) {
    awaited_ = &awaited;
    silence_.set(base::system_clock().in(after));
  }

  /// One request; false = the connection ends here.
  asio::awaitable<bool> serve(RequestHead head) {
    describe(head);
    auto const decision = judge(head);
    if (!decision) co_return co_await answer_denial();
    auto const turn = gateway_.admit_request(flow_, *decision);
    if (!turn.admitted) co_return co_await answer_busy(turn.reason);
    if (turn.wait > 0ns)
      co_await async::sleep_for(std::chrono::ceil<std::chrono::milliseconds>(turn.wait));
    if (was_cut()) co_return false;
    Holds holds(gateway_.broker());
    if (!policy_in_use_->shared_levels().empty()) {
      auto const shared = co_await take_shared(holds);
      if (!shared) co_return co_await answer_no_share(shared.error());
    }
    auto injected = co_await inject(head, *decision, holds);
    if (!injected) co_return co_await answer_injection_failure(injected.error());
    drop_stale_upstream();
    if (!upstream_) {
      bool const connected = co_await connect();
      if (!connected) co_return false;
    }
    // What was cut while its credential or its server was waited for is not sent.
    if (was_cut()) co_return false;
    watch_both();
    if (head.expect_continue) {
      auto const sent = co_await guest_.write_text("HTTP/1.1 100 Continue\r\n\r\n");
      if (!sent) co_return false;
    }
    co_return co_await exchange(head, *decision, *injected);
  }

  bool was_cut() {
    bool const too_old = !gateway_.policy();
    if (!flow_.over && !too_old) return false;
    record_.reason = too_old ? "no_policy" : "cut by a change of the policy or of its credential";
    finish_record("error");
    return true;
  }

  /// A request has begun, though nobody knows yet whether it is one.
  void begin_record() {
    record_ = record_of(flow_, "request");
    record_.flow_class = "http";
    record_.request = fmt::format("{}-{}", flow_.id, ++flow_.requests);
    began_ = base::system_clock().steady_now();
    // Of the policy that is going to decide.
    record_.generation = 0;
  }

  void describe(RequestHead const& head) {
    answering_ = false;
    record_.host.clear();
    if (head.host) {
      record_.host = head.host->str();
      record_.authority = fmt::format("{}:{}", record_.host, head.port);
    }
    record_.method = head.method;
    record_.path = head.path.substr(0, path_shown_max);
    record_.query = names_in_query(head.query.value_or(""));
  }

  /// The decision when allowed; else nothing, with `denial_` saying why.
  std::optional<Decision> judge(RequestHead const& head) {
    denial_ = {};
    auto const deny = [&](int status, std::string reason, std::string sentence) {
      denial_ = {status, std::move(reason), std::move(sentence)};
      return std::nullopt;
    };
    // One canonical name: what was dialled, the SNI and Host are the same bytes or nothing goes
    // out.
    if (!head.host || *head.host != *flow_.host || head.port != flow_.port) {
      return deny(421,
                  "authority_differs",
                  "The Host of the request is another one than the connection was made to.");
    }
    if (head.method == "TRACE" || head.method == "TRACK" || head.method == "CONNECT") {
      return deny(405, "method_never_allowed", "This method is refused everywhere.");
    }
    // Some servers take `post` for POST; rules that take something away name the one only.
    if (std::ranges::any_of(head.method, [](char c) { return c >= 'a' && c <= 'z'; }))
      return deny(405, "method_never_allowed", "Methods are written in upper case.");
    if (!head.upgrade.empty() && head.upgrade != "websocket")
      return deny(403, "upgrade_refused", "Only WebSocket upgrades are known here.");
    // Its body and the frames after the answer would be read by two at once.
    bool const has_body = head.body.kind == Framing::Kind::chunked || head.body.length > 0;
    if (!head.upgrade.empty() && has_body)
      return deny(400, "malformed_request", "A WebSocket upgrade has no body.");
    auto const policy = gateway_.policy();
    if (!policy)
      return deny(503, "no_policy", "This sandbox has no policy in force, so it has no network.");
    record_.generation = policy->generation();
    domain::RequestTuple tuple{
        *head.host, flow_.port, head.method, head.path, !head.upgrade.empty()};
    auto decision = policy->judge_request(tuple);
    record_.level = decision.level;
    record_.rule = decision.rule;
    if (!decision.allowed)
      return deny(403, std::string(name_of(decision.reason)), sentence_of(decision.reason));
    // The rule's text belongs to the policy, which may be replaced while the request runs.
    policy_in_use_ = policy;
    flow_.request = std::move(tuple);
    return decision;
  }

  /// What all sandboxes of a level may do together. A new budget comes to the broker a little after
  /// its policy came here.
  async::Task<wire::Used> take_shared(Holds& holds) {
    if (!gateway_.broker())
      co_return base::fail(base::Code::unavailable, "there is nobody who counts");
    wire::Use use;
    use.scheme = wire::budget_scheme;
    use.credential = policy_in_use_->shared_levels();
    co_return co_await ask_broker(std::move(use), holds);
  }

  async::Task<Injected> inject(RequestHead& head, Decision const& decision, Holds& holds) {
    Injected out;
    std::vector<std::vector<std::string>> secrets;
    auto const* rule = decision.rule_text;
    if (!rule) co_return out;
    if (rule->http || !rule->inject.empty()) strip_rewrites(head);
    if (rule->guest_auth == wire::GuestAuth::strip || !rule->inject.empty()) strip_guest_auth(head);
    for (auto const& one : rule->inject) {
      if (!tls_) co_return base::fail(base::Code::denied, "a credential is sent over TLS only");
      if (domain::mints_credentials(head.host->str(), head.method, head.path)) {
        co_return base::fail(
            base::Code::denied,
            "this endpoint gives out new credentials, which a sandbox must not get");
      }
      if (!gateway_.broker())
        co_return base::fail(base::Code::unavailable, "there is no credential broker");
      // Before it is there: a revocation must find it on its way, too.
      flow_.credentials.push_back(one.credential);
      wire::Use use{one.credential, "https", head.host->str(), flow_.port, head.method, head.path};
      auto used = co_await ask_broker(std::move(use), holds);
      if (!used) co_return base::passing(used, fmt::format("credential {}", one.credential));
      record_.credential_name = one.credential;
      record_.injected = used->header;
      head.remove(used->header);
      head.remove("accept-encoding");  // a compressed answer could not be searched for the value
      head.remove("sec-websocket-extensions");  // nor could a compressed frame
      out.all.push_back(
          {.id = fmt::format("{}/{}", used->id, used->version), .name = one.credential});
      secrets.push_back(used->plain ? std::vector<std::string>() : secrets_of(used->value));
      head.fields.push_back({std::move(used->header), std::move(used->value)});
      record_.credential = out.all.back().id;
    }
    if (!out.all.empty()) out.scrubber = std::make_unique<Scrubber>(secrets);
    for (auto& values : secrets)
      for (auto& value : values)
        explicit_bzero(value.data(), value.size());
    co_return out;
  }

  /// One that is used too often is waited for as long as any budget is.
  async::Task<wire::Used> ask_broker(wire::Use use, Holds& holds) {
    bool const of_level = use.scheme == wire::budget_scheme;
    for (auto waited = 0ms;; waited += credential_pause) {
      auto used = co_await gateway_.broker()->ask(use);
      if (!used) co_return base::passing(used);
      if (used->ok) {
        holds.add(*used);
        co_return used;
      }
      bool const later = (used->code == "exhausted" && used->later_s <= 1) ||
                         (used->code == "not_found" && of_level);
      if (!later || waited + credential_pause >= Limits::patience) {
        retry_after_s_ = std::max(1U, used->later_s);
        busy_ = of_level ? used->id + "_budget" : "credential_budget";
        co_return base::fail(base::code_named(used->code), used->message);
      }
      co_await async::sleep_for(credential_pause);
    }
  }

  asio::awaitable<bool> connect() {
    auto const deadline = base::system_clock().in(connect_timeout);
    auto dialling = tls_ ? gateway_.dialer().dial_tls(*flow_.host, flow_.port, deadline)
                         : gateway_.dialer().dial(*flow_.host, flow_.port, deadline);
    auto connected = co_await std::move(dialling);
    if (connected) {
      upstream_ = std::make_unique<Upstream>(std::move(*connected));
      upstream_->tls = tls::session_of(*upstream_->stream).version;
      co_return true;
    }
    bool const refused = connected.error().code() == base::Code::denied;
    co_await answer(
        refused ? 403 : 502,
        refused ? "private_address" : "upstream_unreachable",
        fmt::format("{} cannot be reached: {}.", flow_.host->str(), connected.error().message()));
    co_return false;
  }

  /// A kept connection that has something to read before we asked is closed, or speaks out of turn:
  /// not used again.
  void drop_stale_upstream() {
    if (!upstream_) return;
    pollfd waiting{upstream_->stream->native_handle(), POLLIN, 0};
    if (!upstream_->reader.received().empty() || ::poll(&waiting, 1, 0) != 0) {
      upstream_.reset();
      flow_.cut = [guest = &guest_] { guest->close(); };
    }
  }

  void watch_both() {
    auto* guest = &guest_;
    auto* upstream = upstream_->stream.get();
    flow_.cut = [guest, upstream] {
      guest->close();
      upstream->close();
    };
  }

  asio::awaitable<bool> exchange(RequestHead& head, Decision const& decision, Injected& injected) {
    record_.address = upstream_->address;
    record_.upstream_tls = upstream_->tls;
    auto text = serialise(head);
    add_ready_body(head.body, text);
    auto const sent = co_await upstream_->stream->write_text(text);
    explicit_bzero(text.data(), text.size());
    for (auto& field : head.fields)
      if (injected.scrubber) explicit_bzero(field.value.data(), field.value.size());
    bool keep = false;
    if (sent && uploaded_) {
      keep = co_await answer_from_upstream(head.method, decision, injected);
    } else if (sent) {
      async::TaskGroup upload(gateway_.executor());
      upload.spawn("upload", send_body(head.body));
      keep = co_await answer_from_upstream(head.method, decision, injected);
      // An answer before the end of the request: the rest of the request has no reader any more.
      if (!uploaded_) {
        keep = false;
        upload.cancel();
      }
      co_await upload.join();
    }
    if (!answering_ && !keep && record_.reason == "byte_budget") {
      co_await answer(403, "byte_budget", "This sandbox has sent as much as its policy allows.");
    } else if (!answering_ && !keep) {
      co_await answer(
          502, "upstream_broke", "The server closed the connection before it answered.");
    }
    answering_ = false;
    count_hits(injected);
    finish_record("allowed");
    if (!keep || !head.keep_alive) {
      upstream_.reset();
      flow_.cut = {};
    }
    co_return keep&& head.keep_alive;
  }

  bool admit_bytes(std::uint64_t up, std::uint64_t down) {
    bool const admitted = gateway_.admit_bytes(flow_, up, down);
    if (!admitted) record_.reason = gateway_.refusal("byte_budget");
    return admitted;
  }

  /// A body that is all here goes along with its head; so does none.
  void add_ready_body(Framing framing, std::string& text) {
    uploaded_ = framing.kind == Framing::Kind::none;
    if (framing.kind != Framing::Kind::length || framing.length > reader_.received().size()) return;
    auto const length = static_cast<std::size_t>(framing.length);
    if (!admit_bytes(length, 0)) {
      upstream_->stream->close();
      return;
    }
    std::string whole;
    whole.reserve(text.size() + length);
    whole += text;
    whole += reader_.received().substr(0, length);
    reader_.consume(length);
    explicit_bzero(text.data(), text.size());
    text = std::move(whole);
    record_.up_bytes += length;
    uploaded_ = true;
  }

  /// The guest's body, re-framed as it streams; back-pressure is the upstream's.
  asio::awaitable<void> send_body(Framing framing) {
    BodyDecoder decoder(framing);
    bool const chunked = framing.kind == Framing::Kind::chunked;
    std::string content;
    while (!decoder.done()) {
      if (reader_.received().empty()) {
        auto const alive = co_await reader_.more();
        if (!alive || !*alive) {
          upstream_->stream->close();  // half a body must not look like a whole one
          co_return;
        }
      }
      content.clear();
      auto const used = decoder.decode(reader_.received(), content);
      if (!used) {
        upstream_->stream->close();
        co_return;
      }
      reader_.consume(*used);
      record_.up_bytes += content.size();
      if (content.empty()) continue;
      if (!admit_bytes(content.size(), 0)) {
        upstream_->stream->close();
        co_return;
      }
      auto const wire = chunked ? encode_chunk(content) : content;
      auto const sent = co_await upstream_->stream->write_text(wire);
      if (!sent) co_return;
    }
    if (chunked) {
      auto const sent = co_await upstream_->stream->write_text(encode_chunk({}));
      if (!sent) co_return;
    }
    uploaded_ = true;
  }

  asio::awaitable<std::optional<ResponseHead>> read_response_head(std::string_view method) {
    while (true) {
      close_at(*upstream_->stream, response_timeout);
      auto text = co_await upstream_->reader.head();
      silence_.cancel();
      if (!text || text->empty()) co_return std::nullopt;
      auto head = parse_response_head(*text, method);
      if (!head) {
        record_.reason = "malformed_response";
        co_return std::nullopt;
      }
      // 100 and 103 speak about the request; the guest got its 100 from us.
      if (head->status >= 200 || head->status == 101) co_return std::move(*head);
    }
  }

  asio::awaitable<bool> answer_from_upstream(std::string const& method,
                                             Decision const& decision,
                                             Injected& injected) {
    auto head = co_await read_response_head(method);
    if (!head) co_return false;
    record_.status = head->status;
    bool const upgraded = head->status == 101;
    if (upgraded && (!flow_.request || !flow_.request->websocket || head->upgrade != "websocket"))
      co_return false;
    clean(*head, decision, injected);
    answering_ = true;
    bool const to_close = head->body.kind == Framing::Kind::until_close;
    if (to_close) head->keep_alive = false;
    outgoing_ = serialise(*head);
    if (upgraded) {
      bool const sent = co_await flush();
      if (!sent) co_return false;
      co_await relay_frames(injected);
      co_return false;
    }
    bool const whole =
        co_await send_answer_body(method == "HEAD" ? Framing{} : head->body,
                                  injected.scrubber && is_scannable(*head) ? &injected : nullptr);
    co_return whole && head->keep_alive;
  }

  /// What a guest must not learn or keep from an answer.
  void clean(ResponseHead& head, Decision const& decision, Injected& injected) {
    head.remove("alt-svc");  // would send the client to HTTP/3, past us
    if (injected.scrubber) head.remove("set-cookie");
    if (decision.rule_text)
      for (auto const& name : decision.rule_text->drop_response_headers)
        head.remove(name);
    if (!injected.scrubber) return;
    auto& scrubber = *injected.scrubber;
    head.reason = scrubber.scrub(head.reason);
    // In a name even asterisks would tell that it was there, and where.
    std::erase_if(head.fields, [&](Field const& field) { return scrubber.finds(field.name); });
    for (auto& field : head.fields)
      field.value = scrubber.scrub(field.value);
    tell_reflected(injected);
  }

  /// Both sides agreed to leave HTTP on a rule that allows it; bytes read ahead go first.
  asio::awaitable<void> relay_frames(Injected& injected) {
    auto const up = flow_.up_bytes;
    auto const down = flow_.down_bytes;
    co_await relay_websocket(gateway_,
                             flow_,
                             guest_,
                             reader_.take_all(),
                             *upstream_->stream,
                             upstream_->reader.take_all(),
                             injected.scrubber.get(),
                             [this, &injected] { tell_reflected(injected); });
    record_.up_bytes += flow_.up_bytes - up;
    record_.down_bytes += flow_.down_bytes - down;
  }

  /// `injected`: null where the body is not searched.
  asio::awaitable<bool> send_answer_body(Framing framing, Injected* injected) {
    BodyDecoder decoder(framing);
    bool const chunked = framing.kind == Framing::Kind::chunked;
    std::string content;
    while (!decoder.done()) {
      content.clear();
      if (upstream_->reader.received().empty()) {
        // Whoever waits for the next event of a stream has all that came before.
        bool const flushed = co_await flush();
        if (!flushed) co_return false;
        auto const alive = co_await upstream_->reader.more();
        if (!alive || !*alive) {
          // A cut TLS connection is an error of the stream and never a complete answer.
          bool const complete = alive && decoder.end_of_stream().has_value();
          if (!complete || framing.kind != Framing::Kind::until_close) co_return false;
          break;
        }
      }
      auto const used = decoder.decode(upstream_->reader.received(), content);
      if (!used) co_return false;
      upstream_->reader.consume(*used);
      bool const sent = co_await send_content(content, chunked, injected);
      if (!sent) co_return false;
    }
    std::string rest;
    if (injected) {
      rest = injected->scrubber->finish();
      tell_reflected(*injected);
    }
    bool const sent = co_await send_piece(rest, chunked);
    if (!sent) co_return false;
    if (chunked) outgoing_ += encode_chunk({});
    co_return co_await flush();
  }

  /// A head, its body and what was held back of it are one write and one TLS record where they come
  /// together: writes cost more than anything else that is done for a small answer.
  asio::awaitable<bool> flush() {
    if (outgoing_.empty()) co_return true;
    auto const text = std::exchange(outgoing_, {});
    auto const sent = co_await guest_.write_text(text);
    co_return sent.has_value();
  }

  asio::awaitable<bool> send_content(std::string& content, bool chunked, Injected* injected) {
    record_.down_bytes += content.size();
    if (!admit_bytes(0, content.size())) co_return false;
    if (injected) {
      content = injected->scrubber->pass(content);
      tell_reflected(*injected);
    }
    co_return co_await send_piece(content, chunked);
  }

  asio::awaitable<bool> send_piece(std::string_view content, bool chunked) {
    if (content.empty()) co_return true;
    if (chunked) {
      outgoing_ += encode_chunk(content);
    } else {
      outgoing_ += content;
    }
    if (outgoing_.size() < buffer_bytes) co_return true;
    co_return co_await flush();
  }

  /// Each credential that came back, once, before the guest gets any of that piece: an answer may
  /// have no end.
  void tell_reflected(Injected& injected) {
    if (injected.scrubber->hits() == 0) return;
    for (std::size_t number = 0; number < injected.all.size(); ++number) {
      auto& one = injected.all[number];
      if (!injected.scrubber->found(number) || std::exchange(one.told, true)) continue;
      auto told = record_;
      told.kind = "credential";
      told.decision = "reflected";
      told.reason = "a server sent it back";
      told.status = 0;
      told.up_bytes = 0;
      told.down_bytes = 0;
      told.credential = one.id;
      told.credential_name = one.name;
      gateway_.report(std::move(told));
    }
  }

  /// Also of an answer that was broken off: a guest that hung up has seen what came before.
  void count_hits(Injected const& injected) {
    if (!injected.scrubber) return;
    record_.scrub_hits = static_cast<std::uint32_t>(injected.scrubber->hits());
    for (auto const& one : injected.all)
      if (one.told) record_.credential = one.id;  // of several, one to look at
  }

  asio::awaitable<bool> answer_denial() {
    auto const denial = denial_;
    co_return co_await answer(denial.status, denial.reason, denial.sentence);
  }

  asio::awaitable<bool> answer_injection_failure(base::Error error) {
    if (error.code() == base::Code::exhausted)
      co_return co_await answer(429, busy_, error.message() + ".");
    bool const denied = error.code() == base::Code::denied;
    co_return co_await answer(denied ? 403 : 503,
                              denied ? "credential_refused" : "credential_unavailable",
                              error.message() + ".");
  }

  asio::awaitable<bool> answer_no_share(base::Error error) {
    if (error.code() == base::Code::exhausted)
      co_return co_await answer(429, busy_, error.message() + ".");
    co_return co_await answer(
        503, "shared_budget_unavailable", "Nobody can say whether this request is one too many.");
  }

  /// Budgets are so many a second: later it is admitted.
  asio::awaitable<bool> answer_busy(std::string_view budget) {
    co_return co_await answer(
        429,
        std::string(budget),
        budget == "request_budget" ? "This sandbox sends more requests than its policy allows."
        : budget == "host_budget"
            ? "This sandbox sends more requests to this host than its policy allows."
            : "This sandbox sends more requests by this rule than its policy allows.");
  }

  /// A refusal that a person and a program can read. The connection ends: a body that nobody read
  /// may be on it.
  asio::awaitable<bool> answer(int status, std::string reason, std::string sentence) {
    record_.status = status;
    record_.reason = reason;
    co_await refuse(status, std::move(reason), std::move(sentence));
    co_return false;
  }

  asio::awaitable<void> refuse(int status, std::string reason, std::string sentence) {
    boost::json::object body;
    body["code"] = reason;
    body["message"] = sentence;
    body["host"] = flow_.host ? flow_.host->str() : "";
    body["rule"] = record_.rule;
    body["level"] = record_.level;
    body["request"] = record_.request;
    ResponseHead head;
    head.status = status;
    head.reason = "Refused by the sandbox's gateway";
    head.keep_alive = false;
    auto const text = boost::json::serialize(body) + "\n";
    head.fields = {{"Content-Type", "application/json"},
                   {"X-Space-Refusal", reason},
                   {"X-Space-Request", record_.request}};
    if (status == 429) head.fields.push_back({"Retry-After", fmt::format("{}", retry_after_s_)});
    head.body = {Framing::Kind::length, text.size()};
    answering_ = true;
    record_.status = status;
    record_.reason = reason;
    finish_record(status == 502 ? "error" : "denied");
    auto const sent = co_await guest_.write_text(serialise(head) + text);
    if (sent) static_cast<void>(co_await guest_.shutdown_write());
  }

  void finish_record(std::string_view decision) {
    if (record_.kind.empty()) return;
    record_.decision = decision;
    if (record_.reason == "byte_budget" && decision == "allowed") record_.decision = "error";
    if (record_.reason.empty()) record_.reason = "allowed";
    record_.duration_us = micros_since(began_);
    gateway_.report(std::exchange(record_, {}));
  }

  struct Denial {
    int status = 403;
    std::string reason;
    std::string sentence;
  };

  Gateway& gateway_;
  LiveFlow& flow_;
  net::ByteStream& guest_;
  Reader reader_;
  bool tls_;
  bool first_ = true;
  bool answering_ = false;
  std::string outgoing_;  // of the answer, until the next wait for the upstream
  bool uploaded_ = false;
  std::uint32_t retry_after_s_ = 1;
  std::string busy_;  // which budget of many sandboxes refused
  Denial denial_;
  wire::GatewayDecision record_;
  base::SteadyTime began_{};  // the request
  std::shared_ptr<domain::EgressPolicy const> policy_in_use_;
  std::unique_ptr<Upstream> upstream_;
  net::ByteStream* awaited_ = nullptr;
  async::Alarm silence_;  // of awaited_
};

}  // namespace

asio::awaitable<void> serve_http(
    Gateway& gateway, LiveFlow& flow, net::ByteStream& guest, std::string received, bool tls) {
  HttpServer server(gateway, flow, guest, std::move(received), tls);
  co_await server.run();
}

}  // namespace gateway
