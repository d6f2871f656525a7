-- name: with_hash
-- The hash leads to the tenant, and everything else is read as that tenant.
select {columns}, k.hash, :now from
  (select o.token_id, set_config('interlock.tenant', o.tenant, true) as tenant from interlock.token_owner(:hash) o offset 0) o
cross join lateral (select * from interlock.token t where t.tenant = o.tenant and t.id = o.token_id offset 0) k;

-- name: old
select tenant, token_id from interlock.old_tokens(:before, :limit);

-- name: forget
select id from interlock.forget_tokens(:tenant, :ids, :before) id;

-- name: touch
-- A token that another transaction records at this moment needs no wait.
with free as materialized (
  select k.id from interlock.token k
  where k.tenant = :tenant and k.id = any(:ids) and (k.last_used_at is null or k.last_used_at <= :before)
  order by k.id for update skip locked)
update interlock.token k set last_used_at = :now from free where k.tenant = :tenant and k.id = free.id;
