-- Samples of what guests use, for graphs: a few hours, and none of it is worth a write-ahead log.
create unlogged table metrics (
  sandbox text not null,
  at timestamptz not null,
  cpu_count int not null,
  cpu_used_pct double precision not null,
  memory_used bigint not null,
  memory_total bigint not null,
  memory_cache bigint not null,
  disk_used bigint not null,
  disk_total bigint not null,
  primary key (sandbox, at)
);
create index metrics_at on metrics using brin (at);
