-- The first schema: owners, keys, nodes, templates, sandboxes with their history, operations, outbox.

-- Times cross the wire as microseconds since 1970, exactly, whatever the session's settings.
create function space_us(timestamptz) returns bigint language sql immutable parallel safe
  as $$ select (extract(epoch from $1) * 1000000)::bigint $$;
create function space_time(bigint) returns timestamptz language sql immutable parallel safe
  as $$ select timestamptz 'epoch' + $1 * interval '1 microsecond' $$;

create table organisations (
  id uuid primary key,
  public_id text not null unique,
  name text not null unique,
  created_at timestamptz not null default now()
);

create table projects (
  id uuid primary key,
  public_id text not null unique,
  organisation_id uuid not null references organisations,
  name text not null,
  -- null: unlimited
  quota_sandboxes bigint check (quota_sandboxes >= 0),
  quota_vcpus bigint check (quota_vcpus >= 0),
  quota_memory_mib bigint check (quota_memory_mib >= 0),
  quota_disk_mib bigint check (quota_disk_mib >= 0),
  created_at timestamptz not null default now(),
  unique (organisation_id, name)
);

-- What the live sandboxes of a project hold together. Raised by the statement that makes a sandbox, only
-- while the quota allows, so that parallel creates cannot overrun it; given back by the one that ends it.
-- A table of its own: its rows change all the time and nothing but the key is indexed.
create table project_usage (
  project_id uuid primary key references projects,
  sandboxes int not null default 0 check (sandboxes >= 0),
  vcpus int not null default 0 check (vcpus >= 0),
  memory_mib bigint not null default 0 check (memory_mib >= 0),
  disk_mib bigint not null default 0 check (disk_mib >= 0)
) with (fillfactor = 30);

create table api_keys (
  id uuid primary key,
  public_id text not null unique,
  project_id uuid not null references projects,
  name text not null,
  role text not null check (role in ('reader', 'member', 'admin')),
  installation boolean not null default false,
  key_sha256 text not null unique check (length(key_sha256) = 64),
  prefix text not null,
  created_by text not null default '',
  created_at timestamptz not null default now(),
  expires_at timestamptz,
  revoked_at timestamptz,
  last_used_at timestamptz
) with (fillfactor = 70);
create index api_keys_project on api_keys (project_id);

-- Who used which key for what: every change, and every refusal.
create table key_uses (
  id bigserial primary key,
  key_public_id text not null,
  project_id uuid not null,
  at timestamptz not null,
  method text not null,
  route text not null,
  target text not null,
  status int not null,
  request_id text not null,
  peer text not null
);
create index key_uses_project on key_uses (project_id, at desc);
create index key_uses_at on key_uses using brin (at);

create table nodes (
  id uuid primary key,
  name text not null unique,
  address text not null,
  draining boolean not null default false,
  report jsonb not null default '{}',
  heartbeat_at timestamptz,
  created_at timestamptz not null default now()
) with (fillfactor = 30);

create table templates (
  id uuid primary key,
  public_id text not null unique,
  project_id uuid references projects,  -- null: of the installation, for everybody
  name text not null,
  is_public boolean not null default false,
  created_at timestamptz not null default now(),
  updated_at timestamptz not null default now()
);
create unique index templates_name_installation on templates (name) where project_id is null;
create unique index templates_name_project on templates (project_id, name) where project_id is not null;

create table template_builds (
  id uuid primary key,
  template_id uuid not null references templates on delete cascade,
  build text not null,
  version int not null,
  state text not null check (state in ('building', 'ready', 'failed')),
  vcpus int not null,
  memory_mib int not null,
  disk_mib int not null,
  default_user text not null,
  default_workdir text not null,
  manifest jsonb not null default '{}',
  created_at timestamptz not null default now(),
  unique (template_id, version),
  unique (template_id, build)
);

create table template_tags (
  template_id uuid not null references templates on delete cascade,
  tag text not null,
  build_id uuid not null references template_builds on delete cascade,
  updated_at timestamptz not null default now(),
  primary key (template_id, tag)
);

-- Live sandboxes only: a small table that stays in memory. Columns that change have no index, so that
-- updates stay in their page (deadline_at changes rarely enough).
create table sandboxes (
  id uuid primary key,
  public_id text not null unique,
  project_id uuid not null references projects,
  state text not null,
  version bigint not null default 1,
  epoch bigint not null default 1,
  node_id uuid not null references nodes,
  build_id uuid not null references template_builds,
  vcpus int not null,
  memory_mib int not null,
  disk_mib int not null,
  metadata jsonb not null default '{}',
  env_sealed text not null default '',
  deadline_at timestamptz,
  timeout_s int not null default 0,
  on_timeout text not null check (on_timeout in ('delete', 'suspend')),
  auto_resume boolean not null,
  secure boolean not null,
  token_generation int not null default 1,
  token_sha256 text not null default '',
  network jsonb,
  api text not null,
  created_by text not null default '',
  created_at timestamptz not null default now(),
  started_at timestamptz,
  timeline jsonb,
  end_reason text not null default '',
  end_detail text not null default ''
) with (fillfactor = 70);
create index sandboxes_project on sandboxes (project_id, created_at desc, public_id);
create index sandboxes_node on sandboxes (node_id);
create index sandboxes_build on sandboxes (build_id);
create index sandboxes_metadata on sandboxes using gin (metadata jsonb_path_ops);
create index sandboxes_deadline on sandboxes (deadline_at) where deadline_at is not null;
create unique index sandboxes_token on sandboxes (token_sha256) where token_sha256 <> '';

-- The history: why each sandbox ended, readable for 30 days. Written once, by the statement that ends it.
create table ended_sandboxes (
  id uuid primary key,
  public_id text not null unique,
  project_id uuid not null,
  state text not null check (state in ('deleted', 'failed')),
  version bigint not null,
  epoch bigint not null,
  node_id uuid not null,
  build_id uuid not null,
  vcpus int not null,
  memory_mib int not null,
  disk_mib int not null,
  metadata jsonb not null,
  timeout_s int not null,
  on_timeout text not null,
  auto_resume boolean not null,
  secure boolean not null,
  network jsonb,
  api text not null,
  created_by text not null,
  created_at timestamptz not null,
  started_at timestamptz,
  timeline jsonb,
  end_reason text not null,
  end_detail text not null,
  console_tail text not null,
  ended_at timestamptz not null default now()
);
create index ended_sandboxes_project on ended_sandboxes (project_id, ended_at desc);
create index ended_sandboxes_build on ended_sandboxes (build_id);
create index ended_sandboxes_time on ended_sandboxes using brin (ended_at);

create table operations (
  id uuid primary key,
  public_id text not null unique,
  project_id uuid not null,
  kind text not null,
  sandbox text not null,
  state text not null default 'running' check (state in ('running', 'succeeded', 'failed')),
  error_code text not null default '',
  error_message text not null default '',
  lease_owner text not null,
  lease_until timestamptz not null,
  attempts int not null default 1,
  idempotency_key text,
  request_sha256 text not null default '',
  actor text not null default '',
  created_at timestamptz not null default now(),
  finished_at timestamptz
) with (fillfactor = 70);
create unique index operations_idempotency on operations (project_id, idempotency_key) where idempotency_key is not null;
create index operations_sandbox on operations (sandbox);
create index operations_project on operations (project_id, id desc);
create index operations_unfinished on operations (id) where finished_at is null;

-- The outbox. `transaction` orders what `id` cannot: see src/store/events.hpp.
create table events (
  transaction xid8 not null default pg_current_xact_id(),
  id bigserial,
  project_id uuid not null,
  sandbox text not null,
  type text not null,
  actor text not null,
  data jsonb,
  created_at timestamptz not null default clock_timestamp(),
  primary key (transaction, id)
);
create index events_project on events (project_id, transaction, id);
create index events_sandbox on events (sandbox, transaction, id) where sandbox <> '';
create index events_time on events using brin (created_at);

create table idempotency_keys (
  project_id uuid not null,
  key text not null,
  request_sha256 text not null,
  status int,  -- null while the first request runs
  body text,
  busy_until timestamptz not null,
  created_at timestamptz not null default now(),
  primary key (project_id, key)
);
