-- Where a tenant lives; one that is new is placed on the shard that is offered.
create or replace function interlock.assign_shard(p_tenant text, p_shard text) returns table (shard text, other text, phase text) language plpgsql as $$
begin
  perform set_config('interlock.tenant', p_tenant, true);
  for attempt in 1..2 loop
    return query select p.shard, p.other, p.phase from interlock.placement p where p.tenant = p_tenant;
    exit when found or attempt = 2;
    insert into interlock.placement (tenant, shard) values (p_tenant, p_shard) on conflict do nothing;
  end loop;
end $$;

-- Lets a tenant live here that never did; one that has left stays away. Tells whether it is new.
create or replace function interlock.admit(p_tenant text) returns boolean language plpgsql as $$
begin
  perform set_config('interlock.tenant', p_tenant, true);
  perform set_config('interlock.admitted', p_tenant, true);
  insert into interlock.tenant (tenant) values (p_tenant) on conflict do nothing;
  return found;
end $$;

-- Writes down how far a move has come, if the tenant still lives where the mover believes it does.
create or replace function interlock.note_move(p_tenant text, p_believed text, p_shard text, p_other text, p_phase text)
returns boolean language plpgsql as $$
begin
  perform set_config('interlock.tenant', p_tenant, true);
  update interlock.placement p set shard = p_shard, other = p_other, phase = p_phase where p.tenant = p_tenant and p.shard = p_believed;
  return found;
end $$;

-- Whether a named claim was granted something that still runs under it.
create or replace function interlock.remembers_claim(p_tenant text, p_worker text, p_claim_id text) returns boolean language plpgsql as $$
begin
  perform set_config('interlock.tenant', p_tenant, true);
  return exists (select from interlock.claim_result c cross join lateral unnest(c.job_ids, c.fences) as g(id, fence)
    join interlock.job j on j.tenant = p_tenant and j.id = g.id and j.status = 'running' and j.fence = g.fence and j.worker = p_worker
    where c.tenant = p_tenant and c.worker = p_worker and c.claim_id = p_claim_id);
end $$;

-- Whether a tenant may be changed here now: it has not left, and no move has it alone.
create or replace function interlock.may_change(p_tenant text) returns boolean language plpgsql as $$
begin
  perform set_config('interlock.tenant', p_tenant, true);
  return pg_try_advisory_xact_lock_shared(interlock.move_lock(p_tenant))
    and exists (select from interlock.tenant t where t.tenant = p_tenant and t.state <> 'gone');
end $$;
