-- The promotion of a SQLite file that fills, or has filled, this database. It belongs to no tenant.

create table interlock.promotion (
  only_row boolean not null default true primary key check (only_row),
  id       text collate "C" not null,
  source   text collate "C" not null,
  phase    text collate "C" not null check (phase in ('copying', 'switching', 'done')),
  begun_at timestamptz not null
);
comment on table interlock.promotion is 'The promotion of a SQLite file to this database; empty if there was none.';
comment on column interlock.promotion.only_row is 'Ensures that there is at most one row.';
comment on column interlock.promotion.id is 'ID of the promotion, which the file has too.';
comment on column interlock.promotion.source is 'Path of the SQLite file.';
comment on column interlock.promotion.phase is
  'copying; switching: the file refuses writes, or is about to; done. Servers open the database only when it is done.';
comment on column interlock.promotion.begun_at is 'Time at which the promotion began.';

create table interlock.promotion_progress (
  name     text collate "C" not null primary key,
  last_key text collate "C" not null
);
comment on table interlock.promotion_progress is 'How far a promotion has copied each table of the file.';
comment on column interlock.promotion_progress.name is 'Table of the file.';
comment on column interlock.promotion_progress.last_key is 'Last key that was copied, as JSON.';

grant select on interlock.promotion to interlock_app;
