#pragma once

#include "base/metrics.hpp"

#include <array>

/// Every metric of the platform. docs/guide/metrics.md is the same table for people; a test
/// compares them.
namespace base::metric {

inline constexpr std::array quick{
    5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 5e-2};
inline constexpr std::array slow{
    0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0};

using enum MetricKind;
using enum MetricTeller;

// clang-format off
// The boundary, as gateways tell it.
inline constexpr Metric dns_queries{"space_dns_queries_total", counter, gateway, "decision", "Queries to the DNS front: allowed (answered) or denied"};
inline constexpr Metric tls_handshakes{"space_tls_handshakes_total", counter, gateway, "result", "TLS handshakes with guests: ok or failed"};
inline constexpr Metric mint_seconds{"space_mint_seconds", histogram, gateway, "", "Making a certificate for a name; cached ones are not counted", quick};
inline constexpr Metric decision_seconds{"space_decision_seconds", histogram, gateway, "", "Judging one connection by the policy", quick};
inline constexpr Metric upstream_connect_seconds{"space_upstream_connect_seconds", histogram, gateway, "", "Reaching a server: its name resolved and connected, without TLS", slow};
inline constexpr Metric upstream_failures{"space_upstream_failures_total", counter, gateway, "stage", "Servers that were not reached, by where it ended: resolve, private_address, connect or tls"};
inline constexpr Metric upstream_tls_failures{"space_upstream_tls_failures_total", counter, gateway, "reason", "Of those, by tls: certificate_expired, certificate_not_yet_valid, certificate_of_another_name, certificate_untrusted, timeout or handshake"};
// The boundary, as workers count it from what they write into the audit log.
inline constexpr Metric egress_flows{"space_egress_flows_total", counter, worker, "decision,reason,posture,class", "Connections of guests that were judged; class is of the rule that allowed it: http, passthrough, tcp, address (a network), open (no rule) or none (not allowed)"};
inline constexpr Metric egress_requests{"space_egress_requests_total", counter, worker, "decision,status,rule_kind", "HTTP requests of guests; rule_kind is of the rule that decided: credential, http (methods or paths), host or none; status is a class such as 2xx, also of the gateway's own refusals"};
inline constexpr Metric egress_bytes{"space_egress_bytes_total", counter, worker, "direction", "Bytes of requests (up) and answers (down) that passed"};
inline constexpr Metric budget_hits{"space_budget_hits_total", counter, worker, "budget", "Refusals because a budget was used up"};
inline constexpr Metric credential_injections{"space_credential_injections_total", counter, worker, "result,type", "Requests for which a credential was wanted: ok, refused or unavailable; type is its form, or none where none was put in"};
inline constexpr Metric scrub_hits{"space_scrub_hits_total", counter, worker, "", "Times that a credential was found in an answer and taken out"};
inline constexpr Metric credential_quarantines{"space_credential_quarantines_total", counter, worker, "", "Credentials that were taken away because a server sent them back"};
inline constexpr Metric policy_apply_seconds{"space_policy_apply_seconds", histogram, worker, "result", "From a changed policy's arrival at the worker until it was in force on live connections: ok or failed", slow};
inline constexpr Metric gateway_restarts{"space_gateway_restarts_total", counter, worker, "", "Gateways that died and were replaced"};
inline constexpr Metric networks_off{"space_networks_switched_off_total", counter, worker, "", "Sandboxes whose network was switched off because something of the boundary failed"};
inline constexpr Metric guard_drops{"space_guard_drops_total", counter, worker, "rule", "Frames of guests that their slot's guard dropped: sender, receiver, protocol, arp, source_address, ip_header, special_address, connection_rate, network_budget or nowhere_to_go"};
inline constexpr Metric audit_gaps{"space_audit_gap_records_total", counter, worker, "", "Decisions that were not recorded one by one"};
inline constexpr Metric audit_waiting{"space_audit_waiting_records", gauge, worker, "", "Decisions that are not in the audit log yet; below a second's worth unless its disk is slow"};
// Lives.
inline constexpr Metric start_seconds{"space_sandbox_start_seconds", histogram, worker, "way", "Starts of sandboxes: warm_machine, base_snapshot, cold_boot or snapshot (also forks)", slow};
inline constexpr Metric start_failures{"space_sandbox_start_failures_total", counter, worker, "code", "Starts that failed on their host"};
inline constexpr Metric change_seconds{"space_sandbox_change_seconds", histogram, worker, "change", "Changes that succeeded: pause, resume, suspend, restore or snapshot", slow};
inline constexpr Metric change_failures{"space_sandbox_change_failures_total", counter, worker, "change,code", "Changes that failed or were refused"};
inline constexpr Metric ends{"space_sandbox_ends_total", counter, worker, "cause", "Sandboxes that ended"};
inline constexpr Metric sandboxes{"space_sandboxes", gauge, worker, "state", "Sandboxes on the host"};
inline constexpr Metric worker_started{"space_worker_start_time_seconds", gauge, worker, "", "When the worker was started, since 1970; it changes with every restart"};
// What the API knows by itself.
inline constexpr Metric node_up{"space_node_up", gauge, api, "", "1 when the worker answers, else 0 and nothing else of that node is here"};
inline constexpr Metric node_draining{"space_node_draining", gauge, api, "", "1 when the node takes no new sandboxes"};
inline constexpr Metric node_memory{"space_node_memory_bytes", gauge, api, "kind", "Memory for sandboxes: total and reserved"};
inline constexpr Metric node_disk{"space_node_disk_bytes", gauge, api, "kind", "Disk for sandboxes: total and reserved"};
inline constexpr Metric node_vcpus{"space_node_vcpus", gauge, api, "kind", "Virtual processors: total and reserved"};
inline constexpr Metric node_slots{"space_node_slots", gauge, api, "kind", "Places for sandboxes: total and reserved"};
inline constexpr Metric warm_machines{"space_warm_machines", gauge, api, "kind", "Machines that wait for a sandbox: ready and target"};
inline constexpr Metric api_requests{"space_api_requests_total", counter, api, "status", "Requests to the public API, by class of status"};
inline constexpr Metric api_started{"space_api_start_time_seconds", gauge, api, "", "When the API was started, since 1970; it changes with every restart"};
inline constexpr Metric samples_refused{"space_metric_samples_refused_total", counter, api, "", "Samples of workers that were no metric of this table"};
// clang-format on

inline constexpr std::array<Metric const*, 37> all{&egress_flows,
                                                   &egress_requests,
                                                   &egress_bytes,
                                                   &dns_queries,
                                                   &tls_handshakes,
                                                   &mint_seconds,
                                                   &decision_seconds,
                                                   &upstream_connect_seconds,
                                                   &upstream_failures,
                                                   &upstream_tls_failures,
                                                   &budget_hits,
                                                   &credential_injections,
                                                   &scrub_hits,
                                                   &credential_quarantines,
                                                   &policy_apply_seconds,
                                                   &gateway_restarts,
                                                   &networks_off,
                                                   &guard_drops,
                                                   &audit_gaps,
                                                   &audit_waiting,
                                                   &start_seconds,
                                                   &start_failures,
                                                   &change_seconds,
                                                   &change_failures,
                                                   &ends,
                                                   &sandboxes,
                                                   &worker_started,
                                                   &node_up,
                                                   &node_draining,
                                                   &node_memory,
                                                   &node_disk,
                                                   &node_vcpus,
                                                   &node_slots,
                                                   &warm_machines,
                                                   &api_requests,
                                                   &api_started,
                                                   &samples_refused};

}  // namespace base::metric
