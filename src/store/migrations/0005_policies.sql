-- Egress policies of the five levels, and credentials. What is current stands beside its history, so that a look at what is
-- in force for a sandbox is five keys and no sort.

-- subject: "" for the platform, else the public id of the organisation, project, template or sandbox.
-- policy null: taken away; the row stays, because the sum of the versions is the generation and must only grow.
create table policies (
  level text not null check (level in ('platform', 'organisation', 'project', 'template', 'sandbox')),
  subject text not null,
  version bigint not null default 1,
  policy jsonb,
  actor text not null default '',
  updated_at timestamptz not null default now(),
  primary key (level, subject)
);

create table policy_versions (
  level text not null,
  subject text not null,
  version bigint not null,
  policy jsonb,
  actor text not null,
  created_at timestamptz not null default now(),
  primary key (level, subject, version)
);

-- The binding is part of what the broker sealed: changing it here opens nothing, it makes the credential unreadable.
create table credentials (
  id uuid primary key,
  organisation_id uuid not null references organisations,
  project_id uuid references projects,  -- null: of the organisation
  name text not null,
  binding jsonb not null,
  profile text not null default '',
  -- {"projects":[public ids],"sandboxes":[public ids]}; null: every sandbox of the project, and nobody of an organisation's
  grants jsonb,
  state text not null default 'active' check (state in ('active', 'revoked', 'quarantined')),
  version int not null default 1,
  created_by text not null default '',
  created_at timestamptz not null default now(),
  updated_at timestamptz not null default now()
);
create unique index credentials_project on credentials (project_id, name) where project_id is not null;
create unique index credentials_organisation on credentials (organisation_id, name) where project_id is null;

-- Ciphertext only; the key that opens it is the broker's.
create table credential_versions (
  credential_id uuid not null references credentials on delete cascade,
  version int not null,
  binding jsonb not null,
  key_id text not null,
  wrapped_key text not null,
  ciphertext text not null,
  actor text not null,
  created_at timestamptz not null default now(),
  primary key (credential_id, version)
);
