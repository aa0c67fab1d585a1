#pragma once

#include "domain/quota.hpp"
#include "store/sandboxes.hpp"

/// The columns of a sandbox and their reader, in one place: every statement that answers with rows
/// of sandboxes lists exactly these.
namespace store {

/// Of a live row called `s`, with row_joins.
inline constexpr std::string_view live_columns =
    "s.id, s.public_id, s.project_id, p.public_id, s.state, s.version, s.epoch, n.name, n.address,"
    " t.public_id, t.name, s.build_id, b.build, b.default_user, b.default_workdir, s.vcpus, "
    "s.memory_mib, s.disk_mib, s.metadata, "
    "s.env_sealed,"
    " space_us(s.deadline_at), s.timeout_s, s.on_timeout, s.auto_resume, s.secure, "
    "s.token_generation,"
    " s.token_sha256, s.network, s.api, space_us(s.created_at), space_us(s.started_at), s.timeline,"
    " space_us(s.suspended_at), s.suspended_bytes, s.problem, s.idle_timeout_s, s.parent, "
    "s.snapshot,"
    " s.end_reason, s.end_detail, ''::text, null::bigint, space_us(s.expires_at)";

/// The same of a row of the history.
inline constexpr std::string_view ended_columns =
    "s.id, s.public_id, s.project_id, p.public_id, s.state, s.version, s.epoch, n.name, n.address,"
    " t.public_id, t.name, s.build_id, b.build, b.default_user, b.default_workdir, s.vcpus, "
    "s.memory_mib, s.disk_mib, s.metadata, "
    "''::text,"
    " null::bigint, s.timeout_s, s.on_timeout, s.auto_resume, s.secure, 0::int,"
    " ''::text, s.network, s.api, space_us(s.created_at), space_us(s.started_at), s.timeline,"
    " null::bigint, 0::bigint, ''::text, 0::int, s.parent, s.snapshot,"
    " s.end_reason, s.end_detail, s.console_tail, space_us(s.ended_at), null::bigint";

inline constexpr std::string_view row_joins =
    " join projects p on p.id = s.project_id join nodes n on n.id = s.node_id"
    " join template_builds b on b.id = s.build_id join templates t on t.id = b.template_id ";

/// The row as callers see it, of a CTE or table of live rows.
std::string row_of(std::string_view source);
std::vector<std::string> names_of(std::span<domain::SandboxState const> states);
/// Which limit of the quota is in the way of `wanted`, from the rows of the usage statement.
base::Error refusal_of(Rows const& usage, domain::Amounts const& wanted);
/// Limits and usage of a project ($1), for refusal_of.
extern Statement const usage_statement;

SandboxRow read_sandbox(RowReader& reader);
SandboxRow read_sandbox(Rows const& rows, std::size_t row);
std::vector<SandboxRow> read_sandboxes(Rows const& rows);

}  // namespace store
