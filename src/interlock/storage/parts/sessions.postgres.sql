-- name: with_hash
-- The hash leads to the tenant, and everything else is read as that tenant.
select {columns}, p.name, p.email, :now from
  (select o.session_id, set_config('interlock.tenant', o.tenant, true) as tenant from interlock.session_owner(:hash) o offset 0) o
cross join lateral (select * from interlock.session t where t.tenant = o.tenant and t.id = o.session_id offset 0) s
left join lateral (select q.name, q.email from interlock.person q where q.tenant = s.tenant and q.actor = s.actor offset 0) p on true;

-- name: old
select tenant, session_id from interlock.old_sessions(:now, :limit);
