#include "gateway/gateway.hpp"

#include "base/log.hpp"

#include <arpa/inet.h>

namespace gateway {
namespace {

base::SteadyTime now() {
  return base::system_clock().steady_now();
}

base::Result<std::vector<AddressFilter::Network>> networks_of(
    std::vector<std::string> const& texts) {
  std::vector<AddressFilter::Network> out;
  for (auto const& text : texts) {
    AddressFilter::Network network{};
    if (!parse_network(text, network))
      return base::fail(base::Code::invalid_argument, fmt::format("\"{}\" is no network", text));
    out.push_back(network);
  }
  return out;
}

}  // namespace

Gateway::Gateway(asio::any_io_executor executor,
                 DecisionSink& sink,
                 std::unique_ptr<BrokerClient> broker)
    : executor_(std::move(executor)),
      sink_(sink),
      broker_(std::move(broker)),
      heard_(now()),
      limits_(now()) {}

Gateway::~Gateway() = default;

base::Result<wire::GatewayStarted> Gateway::start(wire::GatewayStart const& start) {
  if (started()) return base::fail(base::Code::conflict, "the gateway was started already");
  auto refused = networks_of(start.refused_networks);
  if (!refused) return base::passing(refused, "refused_networks");
  auto admitted = networks_of(start.admitted_networks);
  if (!admitted) return base::passing(admitted, "admitted_networks");
  auto trust = start.trusted_ca_pem.empty() ? tls::ClientContext::make("")
                                            : tls::ClientContext::from_pem(start.trusted_ca_pem);
  if (!trust) return base::passing(trust, "trusted_ca_pem");
  auto resolver = make_resolver(
      executor_,
      start.resolvers.empty() ? std::vector<std::string>{"127.0.0.1:1"} : start.resolvers);
  if (!resolver) return base::passing(resolver);
  auto minter = tls::Minter::make(start.sandbox);
  if (!minter) return base::passing(minter);
  for (auto const& [name, address] : start.names) {
    auto const host = domain::HostName::parse(name);
    in_addr parsed{};
    if (!host || inet_pton(AF_INET, address.c_str(), &parsed) != 1) continue;
    names_.restore(*host, ntohl(parsed.s_addr));
  }
  resolver_ = std::move(*resolver);
  dialer_ = std::make_unique<Dialer>(
      *resolver_, AddressFilter(std::move(*refused), std::move(*admitted)), *trust);
  minter_ = std::move(*minter);
  policy_max_age_ = std::chrono::seconds(start.policy_max_age_s);
  auto const applied = apply(start.policy);
  if (!applied.error.empty()) return base::fail(base::Code::invalid_argument, applied.error);
  return wire::GatewayStarted{minter_->authority_pem(), applied.generation};
}

wire::GatewayApplied Gateway::apply(wire::EffectivePolicy const& text) {
  wire::GatewayApplied out;
  out.generation = policy_ ? policy_->generation() : 0;
  heard_of_worker();
  if (policy_ && text.generation < policy_->generation()) {
    out.error = "an older policy than the one in force";
    return out;
  }
  auto compiled = domain::EgressPolicy::compile(text);
  if (!compiled) {
    out.error = compiled.error().message();
    return out;
  }
  policy_ = std::move(*compiled);
  out.generation = policy_->generation();
  names_.set_limit(policy_->budgets().dns_names);
  limits_.apply(*policy_);
  // Cutting a flow may remove others from the list, hence the second list.
  std::vector<std::function<void()>> cuts;
  for (auto& flow : flows_) {
    ++out.connections;
    if (still_allowed(flow, *policy_) || !flow.cut) continue;
    flow.over = true;
    cuts.push_back(flow.cut);
  }
  for (auto const& cut : cuts)
    cut();
  out.cut = static_cast<std::uint32_t>(cuts.size());
  return out;
}

bool Gateway::still_allowed(LiveFlow const& flow, domain::EgressPolicy const& policy) const {
  if (!flow.host) return flow.address == 0 || policy.judge_address(flow.address, flow.port).allowed;
  auto const decision = policy.judge_connection(*flow.host, flow.port);
  if (!decision.allowed || decision.flow != flow.flow) return false;
  return !flow.request || policy.judge_request(*flow.request).allowed;
}

void Gateway::revoke(std::string const& credential) {
  std::vector<std::function<void()>> cuts;
  for (auto& flow : flows_) {
    if (std::ranges::find(flow.credentials, credential) == flow.credentials.end() || !flow.cut)
      continue;
    flow.over = true;
    cuts.push_back(flow.cut);
  }
  for (auto const& cut : cuts)
    cut();
}

void Gateway::heard_of_worker() noexcept {
  heard_ = now();
}

std::shared_ptr<domain::EgressPolicy const> Gateway::policy() const {
  if (now() - heard_ > policy_max_age_) return nullptr;
  return policy_;
}

bool Gateway::admit_connection() {
  auto const current = policy();
  return current && flows_.size() < current->budgets().connections;
}

bool Gateway::admit_handshake() {
  return limits_.admit_handshake(now());
}

Limits::Admission Gateway::admit_request(LiveFlow& flow, domain::Decision const& decision) {
  limits_.find_meters(decision, flow.meters);
  return limits_.admit_request(now(), flow.host->str(), flow.meters);
}

bool Gateway::admit_bytes(LiveFlow& flow, std::uint64_t up, std::uint64_t down) {
  flow.up_bytes += up;
  flow.down_bytes += down;
  bool const admitted = limits_.admit_bytes(up, down, flow.meters);
  return admitted && policy();
}

wire::GatewayDecision record_of(LiveFlow const& flow, std::string_view kind) {
  wire::GatewayDecision out;
  out.kind = kind;
  out.host = flow.host ? flow.host->str() : "";
  out.port = flow.port;
  out.generation = flow.generation;
  out.flow = flow.id;
  out.sni = flow.sni;
  out.tls = flow.tls;
  out.alpn = flow.alpn;
  return out;
}

std::uint64_t micros_since(base::SteadyTime began) {
  auto const passed = base::system_clock().steady_now() - began;
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::microseconds>(passed).count());
}

void Gateway::report(wire::GatewayDecision decision) {
  if (policy_ && decision.generation == 0) decision.generation = policy_->generation();
  sink_.report(std::move(decision));
}

std::optional<RawPermit> RawPermit::from(domain::Decision const& decision) {
  if (!decision.allowed || decision.flow == domain::Flow::http) return std::nullopt;
  return RawPermit();
}

}  // namespace gateway
