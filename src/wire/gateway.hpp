#pragma once

#include "wire/codec.hpp"
#include "wire/policy.hpp"

/// What a worker and the gateway of one sandbox say to each other: JSON lines on one connected
/// stream socket that space-hostd made for them. Worker → gateway: GatewayCommand. Gateway →
/// worker: GatewayEvent.
///
/// A gateway begins with no network. The first command is `start`; it is answered by `started` with
/// the certificate of the gateway's own authority. Every `policy` is answered by `applied` once the
/// new policy holds for new and for live connections alike. When the worker's end closes, the
/// gateway keeps the last policy for `policy_max_age_s`, then refuses everything.
namespace wire {

struct GatewayStart {
  std::string sandbox;
  EffectivePolicy policy;
  std::vector<std::string> resolvers;          // "203.0.113.53" or "203.0.113.53:5353"
  std::string trusted_ca_pem;                  // authorities for upstreams; "" = the system's store
  std::vector<std::string> refused_networks;   // the host's and the control plane's addresses
  std::vector<std::string> admitted_networks;  // an operator's private routes
  std::uint32_t policy_max_age_s = 60;
  std::map<std::string, std::string> names;  // synthetic names of an earlier life: name → address

  static bool required(std::string_view field) { return field == "sandbox" || field == "policy"; }
};
BOOST_DESCRIBE_STRUCT(GatewayStart,
                      (),
                      (sandbox,
                       policy,
                       resolvers,
                       trusted_ca_pem,
                       refused_networks,
                       admitted_networks,
                       policy_max_age_s,
                       names))

struct GatewayCommand {
  std::optional<GatewayStart> start;
  std::optional<EffectivePolicy> policy;
  std::optional<bool> ping;           // "the worker is here": keeps the policy from ageing
  std::optional<bool> names;          // asks for the synthetic names
  std::optional<std::string> revoke;  // a credential's name: cut the requests that carry it
};
BOOST_DESCRIBE_STRUCT(GatewayCommand, (), (start, policy, ping, names, revoke))

struct GatewayStarted {
  std::string authority_pem;
  std::uint64_t generation = 0;
};
BOOST_DESCRIBE_STRUCT(GatewayStarted, (), (authority_pem, generation))

struct GatewayApplied {
  std::uint64_t generation = 0;
  std::uint32_t connections = 0;  // live ones that were judged again
  std::uint32_t cut = 0;
  std::string error;  // "" = in force; else why it was not (the old policy still holds)
};
BOOST_DESCRIBE_STRUCT(GatewayApplied, (), (generation, connections, cut, error))

/// One decision, for the audit and for `space policy watch`. Never a credential's value, never a
/// query's value.
struct GatewayDecision {
  std::string kind;  // dns, connection, request, credential, gap (only `count`); the worker's own:
                     // network, uplink; flow: raw bytes have ended
  std::string decision;  // allowed, denied, error; of a credential: reflected, and from the worker
                         // quarantined; of a flow: ended
  std::string reason;
  std::string host;  // at most 253 bytes of [a-z0-9._-?]
  std::uint16_t port = 0;
  std::string address;  // of the literal destination, or of the upstream that was dialled
  std::string level;
  std::string rule;
  std::uint64_t generation = 0;  // of the policy that decided
  std::string flow;              // the guest's connection: what belongs to it has the same
  std::string request;           // the request in it, as a refusal tells the guest
  std::string flow_class;        // http, tcp, passthrough
  std::string authority;         // Host as the request had it, with its port
  std::string sni;               // as the guest's TLS had it
  std::string tls;               // version that the guest speaks with us
  std::string alpn;
  std::string upstream_tls;  // version that we speak with the server
  std::string method;
  std::string path;   // at most 256 bytes, without the query
  std::string query;  // names alone, with commas between; at most 256 bytes
  std::int32_t status = 0;
  std::uint64_t up_bytes = 0;
  std::uint64_t down_bytes = 0;
  std::uint64_t duration_us = 0;  // of a request from its head on, of a flow from its beginning
  std::string credential;         // id/version of what was injected
  std::string credential_name;
  std::string injected;  // in which header
  std::uint32_t scrub_hits = 0;
  std::uint32_t count = 1;  // coalesced repeats within a second
};
BOOST_DESCRIBE_STRUCT(GatewayDecision,
                      (),
                      (kind,
                       decision,
                       reason,
                       host,
                       port,
                       address,
                       level,
                       rule,
                       generation,
                       flow,
                       request,
                       flow_class,
                       authority,
                       sni,
                       tls,
                       alpn,
                       upstream_tls,
                       method,
                       path,
                       query,
                       status,
                       up_bytes,
                       down_bytes,
                       duration_us,
                       credential,
                       credential_name,
                       injected,
                       scrub_hits,
                       count))

struct GatewayEvent {
  std::optional<GatewayStarted> started;
  std::optional<GatewayApplied> applied;
  std::optional<GatewayDecision> decision;
  std::optional<std::map<std::string, std::string>>
      names;                        // new ones as they are made; all when asked
  std::optional<bool> broker_lost;  // a new connection is wanted
  std::optional<std::string>
      metrics;  // JSON: base::MetricSample's, what was counted since the last event of this kind
};
BOOST_DESCRIBE_STRUCT(GatewayEvent, (), (started, applied, decision, names, broker_lost, metrics))

}  // namespace wire
