-- Suspended sandboxes, snapshots, idle time.
alter table sandboxes
  add column suspended_at timestamptz,
  add column suspended_bytes bigint not null default 0,
  -- Why the last restore failed; '' when nothing is known against its state.
  add column problem text not null default '',
  -- Are its processors and memory in project_usage? Not while it is suspended.
  add column counted boolean not null default true,
  -- After a suspend that failed: no controller tries again before.
  add column suspend_after timestamptz,
  add column idle_timeout_s int not null default 0 check (idle_timeout_s >= 0),  -- 0: never
  add column used_at timestamptz not null default now(),
  add column parent text not null default '',    -- the sandbox that it was forked from
  add column snapshot text not null default '';  -- the snapshot that it was started from
alter table ended_sandboxes
  add column parent text not null default '',
  add column snapshot text not null default '';

-- null: as the installation has it; 0: never
alter table projects
  add column idle_timeout_s int check (idle_timeout_s >= 0),
  add column quota_snapshots bigint check (quota_snapshots >= 0),
  add column quota_snapshot_mib bigint check (quota_snapshot_mib >= 0);

create table snapshots (
  id uuid primary key,
  public_id text not null unique,
  project_id uuid not null references projects,
  name text not null default '',
  state text not null check (state in ('creating', 'ready', 'deleting')),
  hidden boolean not null default false,  -- of a fork: nobody sees it, and it goes with the fork
  node_id uuid not null references nodes,
  build_id uuid not null references template_builds,
  vcpus int not null,
  memory_mib int not null,
  disk_mib int not null,
  bytes bigint not null default 0,
  source text not null,      -- the sandbox's public id
  operation text not null,   -- that takes it
  actor text not null default '',
  created_at timestamptz not null default now(),
  expires_at timestamptz
);
create index snapshots_project on snapshots (project_id, created_at desc, public_id);
create index snapshots_node on snapshots (node_id);
create index snapshots_operation on snapshots (operation);
