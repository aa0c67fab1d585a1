#pragma once

#include "controlplane/placement.hpp"
#include "store/store.hpp"

/// Rows as the native API shows them: api/openapi.yaml, components/schemas.
namespace controlplane {

json::object view_of(store::OrganisationRow const& organisation);
json::object view_of(store::ProjectRow const& project);
json::object view_of(store::KeyRow const& key);
json::object view_of(store::KeyUse const& use);
json::object view_of(store::OperationRow const& operation);
json::object view_of(store::EventRow const& event);
json::object view_of(store::TemplateRow const& one);
json::object view_of(store::BuildRow const& build);
json::object view_of(Nodes::Seen const& node);
json::object view_of(domain::Amounts const& amounts);
json::object view_of(domain::Limits const& limits);
json::object view_of(store::SnapshotRow const& snapshot);

/// Without tokens, domain and timeline, which are not everybody's or not always wanted.
json::object view_of(store::SandboxRow const& sandbox);

}  // namespace controlplane
