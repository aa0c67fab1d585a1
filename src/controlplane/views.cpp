#include "controlplane/views.hpp"

#include <boost/describe/enum_to_string.hpp>

namespace controlplane {
namespace {

void add_time(json::object& object, std::string_view name, std::optional<base::WallTime> time) {
  if (time) object[name] = base::to_rfc3339(*time);
}

void add_text(json::object& object, std::string_view name, std::string const& text) {
  if (!text.empty()) object[name] = text;
}

void add_limit(json::object& object, std::string_view name, std::optional<std::uint64_t> limit) {
  if (limit) object[name] = *limit;
}

}  // namespace

json::object view_of(domain::Amounts const& amounts) {
  return {{"sandboxes", amounts.sandboxes},
          {"vcpus", amounts.vcpus},
          {"memory_mib", amounts.memory_mib},
          {"disk_mib", amounts.disk_mib}};
}

json::object view_of(domain::Limits const& limits) {
  json::object out;
  add_limit(out, "sandboxes", limits.sandboxes);
  add_limit(out, "vcpus", limits.vcpus);
  add_limit(out, "memory_mib", limits.memory_mib);
  add_limit(out, "disk_mib", limits.disk_mib);
  add_limit(out, "snapshots", limits.snapshots);
  add_limit(out, "snapshot_mib", limits.snapshot_mib);
  return out;
}

json::object view_of(store::OrganisationRow const& organisation) {
  return {{"id", organisation.public_id},
          {"name", organisation.name},
          {"created_at", base::to_rfc3339(organisation.created_at)}};
}

json::object view_of(store::ProjectRow const& project) {
  json::object out{{"id", project.public_id},
                   {"name", project.name},
                   {"organisation", project.organisation_public_id},
                   {"quota", view_of(project.limits)},
                   {"used", view_of(project.used)},
                   {"created_at", base::to_rfc3339(project.created_at)}};
  if (project.idle_timeout_s) out["idle_timeout_s"] = *project.idle_timeout_s;
  if (project.suspended_keep_s) out["suspended_keep_s"] = *project.suspended_keep_s;
  return out;
}

json::object view_of(store::KeyRow const& key) {
  json::object out{{"id", key.public_id},
                   {"name", key.name},
                   {"project", key.project_public_id},
                   {"role", boost::describe::enum_to_string(key.role, "reader")},
                   {"installation", key.installation},
                   {"prefix", key.prefix},
                   {"created_at", base::to_rfc3339(key.created_at)}};
  add_text(out, "created_by", key.created_by);
  add_time(out, "expires_at", key.expires_at);
  add_time(out, "revoked_at", key.revoked_at);
  add_time(out, "last_used_at", key.last_used_at);
  return out;
}

json::object view_of(store::KeyUse const& use) {
  json::object out{{"key", use.key_public_id},
                   {"at", base::to_rfc3339(use.at)},
                   {"method", use.method},
                   {"route", use.route},
                   {"target", use.target},
                   {"status", use.status},
                   {"request_id", use.request_id}};
  add_text(out, "peer", use.peer);
  return out;
}

json::object view_of(store::OperationRow const& operation) {
  json::object out{{"id", operation.public_id},
                   {"kind", operation.kind},
                   {"sandbox", operation.sandbox},
                   {"state", operation.state},
                   {"created_at", base::to_rfc3339(operation.created_at)}};
  if (operation.state == "failed") {
    out["error"] =
        json::object{{"code", operation.error_code}, {"message", operation.error_message}};
  }
  add_time(out, "finished_at", operation.finished_at);
  return out;
}

json::object view_of(store::EventRow const& event) {
  json::object out{{"id", store::to_text(event.cursor)},
                   {"type", event.type},
                   {"at", base::to_rfc3339(event.created_at)}};
  add_text(out, "sandbox", event.sandbox);
  add_text(out, "actor", event.actor);
  if (event.data.is_object()) out["data"] = event.data;
  return out;
}

json::object view_of(store::BuildRow const& build) {
  return {{"id", build.id},
          {"build", build.build},
          {"version", build.version},
          {"state", build.state},
          {"vcpus", build.vcpus},
          {"memory_mib", build.memory_mib},
          {"disk_mib", build.disk_mib},
          {"created_at", base::to_rfc3339(build.created_at)}};
}

json::object view_of(store::TemplateRow const& one) {
  json::object out{{"id", one.public_id},
                   {"name", one.name},
                   {"public", one.is_public},
                   {"builds", one.build_count},
                   {"sandboxes_started", one.spawn_count},
                   {"created_at", base::to_rfc3339(one.created_at)},
                   {"updated_at", base::to_rfc3339(one.updated_at)}};
  if (one.latest) out["latest"] = view_of(*one.latest);
  return out;
}

json::object view_of(store::SnapshotRow const& snapshot) {
  json::object out{{"id", snapshot.public_id},
                   {"state", snapshot.state},
                   {"source", snapshot.source},
                   {"template", snapshot.template_name},
                   {"node", snapshot.node},
                   {"vcpus", snapshot.vcpus},
                   {"memory_mib", snapshot.memory_mib},
                   {"disk_mib", snapshot.disk_mib},
                   {"bytes", snapshot.bytes},
                   {"created_at", base::to_rfc3339(snapshot.created_at)}};
  add_text(out, "name", snapshot.name);
  add_time(out, "expires_at", snapshot.expires_at);
  return out;
}

json::object view_of(Nodes::Seen const& node) {
  auto const& report = node.report;
  domain::Amounts const total{
      report.slots_total, report.vcpus_total, report.memory_mib_total, report.disk_mib_total};
  domain::Amounts const used{
      report.slots_used, report.vcpus_used, report.memory_mib_used, report.disk_mib_used};
  json::array unlimited;
  for (auto const& one : report.unlimited)
    unlimited.emplace_back(one);
  json::array builds;
  for (auto const& one : report.builds)
    builds.emplace_back(one);
  json::object out{{"name", node.row.name},
                   {"state", node.ready ? "ready" : "silent"},
                   {"draining", node.row.draining},
                   {"driver", report.driver},
                   {"accelerator", report.accelerator},
                   {"accelerator_proof", report.accelerator_proof},
                   {"boundary", report.boundary},
                   {"unlimited", std::move(unlimited)},
                   {"total", view_of(total)},
                   {"used", view_of(used)},
                   {"builds", std::move(builds)}};
  add_time(out, "heartbeat_at", node.row.heartbeat_at);
  // The controller's words, which are in the row alone; the worker's own report knows no database.
  auto const& told = node.row.report;
  if (told.unclaimed_total == 0) return out;
  json::array unclaimed;
  for (auto const& one : told.unclaimed)
    unclaimed.emplace_back(one);
  out["unclaimed"] = std::move(unclaimed);
  out["unclaimed_total"] = told.unclaimed_total;
  return out;
}

json::object view_of(store::SandboxRow const& sandbox) {
  json::object metadata;
  for (auto const& [key, value] : sandbox.metadata)
    metadata[key] = value;
  json::object out{{"id", sandbox.public_id},
                   {"project", sandbox.project_public_id},
                   {"state", domain::name_of(sandbox.state)},
                   {"epoch", sandbox.epoch},
                   {"node", sandbox.node},
                   {"template", sandbox.template_name},
                   {"template_id", sandbox.template_public_id},
                   {"build", sandbox.build},
                   {"vcpus", sandbox.vcpus},
                   {"memory_mib", sandbox.memory_mib},
                   {"disk_mib", sandbox.disk_mib},
                   {"metadata", std::move(metadata)},
                   {"on_timeout", sandbox.on_timeout},
                   {"auto_resume", sandbox.auto_resume},
                   {"secure", sandbox.secure},
                   {"created_at", base::to_rfc3339(sandbox.created_at)}};
  if (sandbox.timeout_s > 0) out["timeout_s"] = sandbox.timeout_s;
  add_time(out, "deadline_at", sandbox.deadline_at);
  add_time(out, "started_at", sandbox.started_at);
  add_time(out, "suspended_at", sandbox.suspended_at);
  add_time(out, "expires_at", sandbox.expires_at);
  if (sandbox.suspended_bytes > 0) out["suspended_bytes"] = sandbox.suspended_bytes;
  add_text(out, "problem", sandbox.problem);
  if (sandbox.idle_timeout_s > 0) out["idle_timeout_s"] = sandbox.idle_timeout_s;
  add_text(out, "parent", sandbox.parent);
  add_text(out, "snapshot", sandbox.snapshot);
  add_text(out, "end_reason", sandbox.end_reason);
  add_text(out, "end_detail", sandbox.end_detail);
  add_text(out, "console_tail", sandbox.console_tail);
  add_time(out, "ended_at", sandbox.ended_at);
  return out;
}

}  // namespace controlplane
