-- Credentials of one template: of their project's sandboxes those that were made from it. A name means the nearest one: the template's
-- before the project's before the organisation's.
alter table credentials add column template text not null default '';  -- public id; '': of the whole project, or organisation
alter table credentials add constraint credentials_template check (template = '' or project_id is not null);
drop index credentials_project;
create unique index credentials_project on credentials (project_id, template, name) where project_id is not null;
