// Snapshots of sandboxes, sandboxes made from them, and forks.
#include "base/fault.hpp"
#include "base/id.hpp"
#include "base/log.hpp"
#include "controlplane/sandbox_service.hpp"
#include "domain/template_name.hpp"

namespace controlplane {
namespace {

using base::Code;

constexpr std::chrono::milliseconds settle_timeout{5000};
constexpr std::uint32_t forks_max = 100;

base::Error no_such_snapshot(std::string_view name) {
  return {Code::not_found, fmt::format("there is no snapshot \"{}\"", name.substr(0, 128))};
}

store::BuildRow build_of(store::SnapshotRow const& snapshot) {
  store::BuildRow build;
  build.id = snapshot.build_id;
  build.build = snapshot.build;
  build.template_public_id = snapshot.template_public_id;
  build.template_name = snapshot.template_name;
  build.vcpus = snapshot.vcpus;
  build.memory_mib = snapshot.memory_mib;
  build.disk_mib = snapshot.disk_mib;
  build.default_user = snapshot.default_user;
  build.default_workdir = snapshot.default_workdir;
  return build;
}

}  // namespace

struct SandboxService::Taking {
  store::SnapshotRow snapshot;
  store::SandboxRow sandbox;
};

base::Result<store::BuildRow> build_from_snapshot(CreateSpec const& spec,
                                                  store::SnapshotRow const& snapshot) {
  for (auto const& [name, asked, is] :
       {std::tuple("vcpus", spec.vcpus, snapshot.vcpus),
        std::tuple("memory_mib", spec.memory_mib, snapshot.memory_mib),
        std::tuple("disk_mib", spec.disk_mib, snapshot.disk_mib)}) {
    if (asked && *asked != is) {
      return base::fail(
          Code::invalid_argument,
          fmt::format("{}: a sandbox from this snapshot has {}; leave it out", name, is));
    }
  }
  return build_of(snapshot);
}

/// What `spec` starts from, when that is a snapshot. E2B clients give its id as the template.
async::Task<std::optional<store::SnapshotRow>> SandboxService::snapshot_of(
    std::string project_id, CreateSpec const* spec, base::Deadline deadline) {
  std::optional<store::SnapshotRow> none;
  if (spec->snapshot_row) co_return spec->snapshot_row;
  auto name = spec->snapshot;
  if (name.empty()) {
    auto const parsed = domain::parse_template_name(spec->template_name);
    if (parsed && base::is_short_id('s', parsed->alias)) name = parsed->alias;
  }
  if (name.empty()) co_return none;
  auto found = co_await store_.snapshots.find(std::move(project_id), name, deadline);
  if (!found) co_return base::passing(found);
  if (!*found) co_return std::unexpected(no_such_snapshot(name));
  co_return found;
}

async::Task<store::SnapshotRow> SandboxService::get_snapshot(std::string project_id,
                                                             std::string id_or_name,
                                                             base::Deadline deadline) {
  auto found = co_await store_.snapshots.find(std::move(project_id), id_or_name, deadline);
  if (!found) co_return base::passing(found);
  if (!*found) co_return std::unexpected(no_such_snapshot(id_or_name));
  co_return std::move(**found);
}

async::Task<SnapshotStarted> SandboxService::snapshot(Asker asker,
                                                      std::string sandbox,
                                                      SnapshotSpec spec,
                                                      base::Deadline deadline) {
  auto row = co_await get(asker.owner.project_id, sandbox, Ended::hide, deadline);
  if (!row) co_return base::passing(row);
  SnapshotStarted started;
  auto before = co_await earlier(asker, "sandbox.snapshot", deadline);
  if (!before) co_return base::passing(before);
  if (*before) {
    auto taken =
        co_await store_.snapshots.find_by_operation((*before)->operation.public_id, deadline);
    if (!taken) co_return base::passing(taken);
    if (!*taken) co_return base::fail(Code::not_found, "that snapshot is not there any more");
    started.snapshot = std::move(**taken);
    started.operation = std::move((*before)->operation);
    co_return started;
  }
  store::NewSnapshot wanted;
  wanted.public_id = base::make_short_id('s');
  wanted.sandbox_id = row->id;
  wanted.name = std::move(spec.name);
  wanted.hidden = spec.hidden;
  wanted.expires_in_s = spec.expires_in_s;
  wanted.operation = base::make_short_id('x');
  wanted.lease_owner = options_.instance;
  wanted.lease = options_.lease;
  wanted.actor = asker.owner.key_public_id;
  wanted.idempotency_key = asker.idempotency_key;
  wanted.request_sha256 = asker.request_sha256;
  auto made = co_await store_.snapshots.create(std::move(wanted), deadline);
  if (!made) co_return base::passing(made);
  hub_.poke();
  started.operation.public_id = made->operation;
  started.operation.project_id = made->project_id;
  started.operation.kind = "sandbox.snapshot";
  started.operation.sandbox = row->public_id;
  started.operation.created_at = made->created_at;
  started.snapshot = *made;
  begin(made->operation);
  auto taking = std::make_shared<Taking>(Taking{std::move(*made), std::move(*row)});
  work_.spawn("take a snapshot", run_snapshot(std::move(taking)));
  co_return started;
}

asio::awaitable<void> SandboxService::run_snapshot(std::shared_ptr<Taking> taking) {
  struct Done {
    SandboxService& service;
    std::string const& operation;

    ~Done() { service.finished(operation); }
  } const done{*this, taking->snapshot.operation};

  auto const& snapshot = taking->snapshot;
  auto report = base::Result<wire::SnapshotReport>(
      base::fail(Code::unavailable, "the worker was not asked (injected)"));
  if (!SPACE_FAULT("api.snapshot.before_worker")) {
    report = co_await workers_.take_snapshot(taking->sandbox.node_address,
                                             taking->sandbox.public_id,
                                             {taking->sandbox.epoch, snapshot.public_id},
                                             base::system_clock().in(options_.suspend_timeout));
  }
  bool const lost = SPACE_FAULT("api.snapshot.after_worker");
  bool const unknown = lost || (!report && (report.error().code() == Code::unavailable ||
                                            report.error().code() == Code::deadline_exceeded ||
                                            report.error().code() == Code::cancelled));
  base::Result<bool> settled = false;
  if (!unknown && report) {
    settled = co_await store_.snapshots.settle(
        snapshot.id, report->bytes, base::system_clock().in(settle_timeout));
  } else if (!unknown) {
    base::log::warn("snapshot_failed",
                    {{"sandbox", taking->sandbox.public_id}, {"why", report.error().message()}});
    settled = co_await store_.snapshots.fail(snapshot.id,
                                             std::string(base::name_of(report.error().code())),
                                             report.error().message(),
                                             base::system_clock().in(settle_timeout));
  }
  hub_.poke();
  if (!unknown && settled) co_return;
  auto handing = hand_over(snapshot.operation);
  co_await std::move(handing);
}

async::Task<void> SandboxService::remove_snapshot(Asker asker,
                                                  std::string id_or_name,
                                                  base::Deadline deadline) {
  auto row = co_await get_snapshot(asker.owner.project_id, std::move(id_or_name), deadline);
  if (!row) co_return base::passing(row);
  if (SPACE_FAULT("api.snapshot.before_delete"))
    co_return base::fail(Code::unavailable, "the delete was interrupted (injected)");
  auto going = co_await store_.snapshots.begin_delete(row->id, deadline);
  if (!going) co_return base::passing(going);
  // From here on it is gone for everybody. A controller removes what is not removed now.
  if (SPACE_FAULT("api.snapshot.after_delete")) co_return base::Result<void>();
  // A create that had begun gets what it was promised: its worker still reads the files.
  auto const starts = co_await store_.snapshots.has_starts(row->public_id, deadline);
  if (!starts || *starts) co_return base::Result<void>();
  auto removed = co_await workers_.remove_snapshot(row->node_address, row->public_id, deadline);
  if (!removed) {
    base::log::warn("snapshot_not_removed",
                    {{"snapshot", row->public_id}, {"why", removed.error().message()}});
    co_return base::Result<void>();
  }
  auto gone = co_await store_.snapshots.remove(row->id, deadline);
  if (!gone) base::log::warn("snapshot_row_left", {{"snapshot", row->public_id}});
  co_return base::Result<void>();
}

/// What a copy of `row` is made like, apart from its memory and disk.
async::Task<CreateSpec> SandboxService::spec_of_fork(store::SandboxRow row,
                                                     base::Deadline deadline) {
  CreateSpec spec;
  spec.parent = row.public_id;
  spec.metadata = row.metadata;
  spec.timeout_s = row.timeout_s;
  spec.on_timeout = row.on_timeout;
  spec.auto_resume = row.auto_resume;
  spec.secure = row.secure;
  spec.network = row.network;
  spec.api = row.api;
  spec.idle_timeout_s = row.idle_timeout_s;
  if (!row.env_sealed.empty()) {
    auto env = tokens_.open(row.public_id, row.env_sealed);
    if (!env) co_return base::passing(env);
    spec.env = std::move(*env);
  }
  // What limits the parent limits its copies.
  auto own = co_await store_.policies.find("sandbox", row.public_id, deadline);
  if (!own) co_return base::passing(own);
  if (*own && !(*own)->policy.is_null()) {
    auto policy = wire::decode<wire::Policy>((*own)->policy);
    if (!policy) co_return base::passing(policy, "the sandbox's policy");
    spec.policy = std::move(*policy);
  }
  auto brought = co_await store_.credentials.of_sandbox(row.public_id, deadline);
  if (!brought) co_return base::passing(brought);
  spec.credentials = std::move(*brought);
  co_return spec;
}

async::Task<std::vector<Forked>> SandboxService::fork(Asker asker,
                                                      std::string sandbox,
                                                      std::uint32_t count,
                                                      std::optional<std::uint32_t> timeout_s,
                                                      base::Deadline until) {
  if (count < 1 || count > forks_max)
    co_return base::fail(Code::invalid_argument, fmt::format("count: must be 1 to {}", forks_max));
  auto row = co_await get(asker.owner.project_id, sandbox, Ended::hide, until);
  if (!row) co_return base::passing(row);
  auto spec = co_await spec_of_fork(*row, until);
  if (!spec) co_return base::passing(spec);
  if (timeout_s) spec->timeout_s = *timeout_s;
  asker.idempotency_key.clear();  // of the whole answer, which the front keeps
  SnapshotSpec hidden;
  hidden.hidden = true;
  auto taken = co_await snapshot(asker, sandbox, std::move(hidden), until);
  if (!taken) co_return base::passing(taken);
  auto operation = co_await wait(asker.owner.project_id, taken->operation.public_id, until);
  if (!operation) co_return base::passing(operation);
  if (operation->state != "succeeded") {
    co_return base::fail(
        operation->done() ? base::code_named(operation->error_code) : Code::deadline_exceeded,
        fmt::format("the sandbox could not be forked: {}",
                    operation->done() ? operation->error_message : "it takes too long"));
  }
  spec->snapshot_row = taken->snapshot;
  std::vector<Forked> copies;
  for (std::uint32_t i = 0; i < count; ++i) {
    auto one = co_await create(asker, *spec, until);
    copies.push_back(std::move(one));
  }
  for (auto& copy : copies) {
    if (!copy) continue;
    auto settled = co_await settled_copy(std::move(*copy), until);
    copy = std::move(settled);
  }
  // What was started from it keeps its files. What fails here, a controller does.
  auto const soon = base::system_clock().in(settle_timeout);
  auto going = co_await store_.snapshots.begin_delete(taken->snapshot.id, soon);
  auto const starts = co_await store_.snapshots.has_starts(taken->snapshot.public_id, soon);
  if (!starts || *starts) co_return copies;  // one takes longer than anybody waits
  auto removed = co_await workers_.remove_snapshot(
      taken->snapshot.node_address, taken->snapshot.public_id, soon);
  if (going && removed)
    (void)(co_await store_.snapshots.remove(taken->snapshot.id, soon)).has_value();
  co_return copies;
}

/// As it is once its create has ended.
async::Task<Started> SandboxService::settled_copy(Started copy, base::Deadline until) {
  auto const project = copy.sandbox.project_id;
  auto done = co_await wait(project, copy.operation.public_id, until);
  if (!done) co_return base::passing(done);
  if (!done->done()) co_return base::fail(Code::deadline_exceeded, "it is still being started");
  if (done->state != "succeeded")
    co_return base::fail(base::code_named(done->error_code), done->error_message);
  auto now = co_await get(
      project, copy.sandbox.public_id, Ended::show, base::system_clock().in(settle_timeout));
  if (!now) co_return base::passing(now);
  co_return Started{std::move(*now), std::move(*done), false};
}

}  // namespace controlplane
