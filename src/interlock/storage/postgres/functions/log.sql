-- Record an operator's action in the transaction of the change; the app role cannot write the log in any other way.
create or replace function interlock.log(p_tenant text, p_actor text, p_action text, p_object text, p_details text) returns boolean
  language plpgsql security definer set search_path = interlock, pg_temp as $$
declare
  t timestamptz := clock();
  last_seq bigint; last_hash bytea;
begin
  perform set_config('interlock.tenant', p_tenant, true);
  -- One writer per tenant: the next statement sees the row that the previous writer committed.
  perform pg_advisory_xact_lock(hashtextextended('interlock log ' || p_tenant, 0));
  select l.seq, l.hash into last_seq, last_hash from audit_log l where l.tenant = p_tenant order by l.seq desc limit 1;
  perform set_config('interlock.verb', 'log', true);
  insert into audit_log (tenant, seq, actor, action, object, details, at, hash)
  values (p_tenant, coalesce(last_seq, 0) + 1, p_actor, p_action, p_object, p_details, t,
    sha256(coalesce(last_hash, convert_to(field(p_tenant), 'UTF8')) || convert_to(field(coalesce(last_seq, 0) + 1) || field(p_actor)
      || field(p_action) || field(p_object) || field(p_details) || field(micros(t)), 'UTF8')));
  perform set_config('interlock.verb', '', true);
  return true;
end $$;
