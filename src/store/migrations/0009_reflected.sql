-- When, by its worker's clock, a server last sent it back: what was told of once does not quarantine it again after a release.
alter table credentials add column reflected_at timestamptz;
