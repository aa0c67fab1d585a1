-- An operator's word that a host will not come back: only then are its sandboxes given up.
alter table nodes add column lost_at timestamptz;
