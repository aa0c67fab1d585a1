-- Credentials that belong to one sandbox and nobody else: what an E2B client said in `network.rules`. A row comes before its
-- sandbox's and goes with it; the ciphertext opens for this `credential` alone, which a fork shares with its parent.
create table sandbox_credentials (
  sandbox text not null,     -- public id
  name text not null,        -- as its policy calls it
  credential text not null,
  version int not null,
  binding jsonb not null,
  key_id text not null,
  wrapped_key text not null,
  ciphertext text not null,
  created_at timestamptz not null default now(),
  primary key (sandbox, name)
);
