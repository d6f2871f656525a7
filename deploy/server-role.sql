-- For psql: the role that servers and workers connect as. It owns nothing and cannot rewrite history.
\set ON_ERROR_STOP on
select 'create role interlock_server login in role interlock_app'
where not exists (select from pg_roles where rolname = 'interlock_server') \gexec
alter role interlock_server password :'password';
