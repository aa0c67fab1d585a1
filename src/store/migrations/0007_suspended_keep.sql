-- How long a project keeps sandboxes that nobody resumes.
-- null: for as long as nobody deletes them.
alter table projects add column suspended_keep_s int check (suspended_keep_s > 0);
alter table sandboxes
  add column expires_at timestamptz,  -- of a suspended one: when it is deleted
  add column expiry_told boolean not null default false;
create index sandboxes_expires on sandboxes (expires_at) where expires_at is not null;
-- As the API writes times.
create function space_text(timestamptz) returns text language sql stable parallel safe
  return to_char($1 at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"');
