-- Return the placement of a tenant; place a new tenant on the offered shard.
create or replace function interlock.assign_shard(p_tenant text, p_shard text) returns table (shard text, other text, phase text) language plpgsql as $$
begin
  perform set_config('interlock.tenant', p_tenant, true);
  for attempt in 1..2 loop
    return query select p.shard, p.other, p.phase from interlock.placement p where p.tenant = p_tenant;
    exit when found or attempt = 2;
    insert into interlock.placement (tenant, shard) values (p_tenant, p_shard) on conflict do nothing;
  end loop;
end $$;

-- Admit a tenant that is new to this shard and return whether it is new. A tenant that has moved away stays away.
create or replace function interlock.admit(p_tenant text) returns boolean language plpgsql as $$
begin
  perform set_config('interlock.tenant', p_tenant, true);
  perform set_config('interlock.admitted', p_tenant, true);
  insert into interlock.tenant (tenant) values (p_tenant) on conflict do nothing;
  return found;
end $$;

-- Record the progress of a move, if the tenant is still on the shard that the mover expects.
create or replace function interlock.note_move(p_tenant text, p_believed text, p_shard text, p_other text, p_phase text)
returns boolean language plpgsql as $$
begin
  perform set_config('interlock.tenant', p_tenant, true);
  update interlock.placement p set shard = p_shard, other = p_other, phase = p_phase where p.tenant = p_tenant and p.shard = p_believed;
  return found;
end $$;

-- Return whether a job leased under this claim ID still runs under that lease.
create or replace function interlock.remembers_claim(p_tenant text, p_worker text, p_claim_id text) returns boolean language plpgsql as $$
begin
  perform set_config('interlock.tenant', p_tenant, true);
  return interlock.running_under(p_tenant, p_worker, p_claim_id) <> '{}';
end $$;

-- Return whether a tenant can be changed here now: it has not moved away, and no move holds its lock.
create or replace function interlock.may_change(p_tenant text) returns boolean language plpgsql as $$
begin
  perform set_config('interlock.tenant', p_tenant, true);
  return pg_try_advisory_xact_lock_shared(interlock.move_lock(p_tenant))
    and exists (select from interlock.tenant t where t.tenant = p_tenant and t.state <> 'gone');
end $$;
