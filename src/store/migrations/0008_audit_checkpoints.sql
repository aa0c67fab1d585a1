-- What the audit logs of workers were, kept where whoever can write those logs cannot write.
create table audit_nodes (
  node_id uuid primary key references nodes on delete cascade,
  public_key text not null check (length(public_key) = 64),  -- the first that was shown; stays until an administrator lets it go
  enrolled_at timestamptz not null default now(),
  problem text not null default '',  -- the first one; stays likewise
  problem_at timestamptz
);
create table audit_checkpoints (
  node_id uuid not null references nodes on delete cascade,
  last_sequence bigint not null check (last_sequence >= 1),
  first_sequence bigint not null check (first_sequence between 1 and last_sequence),
  hash text not null check (length(hash) = 64),
  made_at_us bigint not null,
  signature text not null check (length(signature) = 128),
  received_at timestamptz not null default now(),
  primary key (node_id, last_sequence)
);
