-- Count the active subscriptions and all stored ones.
create or replace function interlock.count_subscriptions(p_tenant text, out active bigint, out kept bigint) language sql as $$
  select count(*) filter (where s.ended_at is null and (s.expires_at is null or s.expires_at > interlock.clock())), count(*)
  from interlock.subscription s where s.tenant = p_tenant
$$;

-- Add a subscription unless its key or id exists, and return the id and body hash of the stored one. At the storage
-- limit, delete the subscription that ended first.
create or replace function interlock.subscribe(
  p_tenant text, p_id uuid, p_channel text, p_url text, p_events text[], p_types text[], p_mode text, p_group_id text,
  p_min_interval double precision, p_expires_in double precision, p_secret text, p_created_by text, p_key text, p_body bytea, p_most integer,
  p_most_kept integer
) returns table (id uuid, body bytea) language plpgsql as $$
declare
  t timestamptz := interlock.clock();
  counted record;
begin
  perform set_config('interlock.tenant', p_tenant, true);
  select * into counted from interlock.count_subscriptions(p_tenant);
  if counted.active < p_most and not exists (select from interlock.subscription s where s.tenant = p_tenant and (s.key = p_key or s.id = p_id))
  then
    if counted.kept >= p_most_kept then
      perform interlock.unsubscribe(p_tenant, (
        select s.id from interlock.subscription s where s.tenant = p_tenant and (s.ended_at is not null or s.expires_at <= t)
        order by least(s.ended_at, s.expires_at), s.id limit 1));
    end if;
    insert into interlock.subscription (tenant, id, channel, url, events, types, mode, group_id, min_interval_seconds, expires_at, secret,
      created_at, created_by, key, body_sha256)
    values (p_tenant, p_id, p_channel, p_url, p_events, p_types, p_mode, p_group_id, p_min_interval,
      t + p_expires_in * interval '1 second', p_secret, t, p_created_by, p_key, p_body)
    on conflict do nothing;
  end if;
  return query select s.id, s.body_sha256 from interlock.subscription s where s.tenant = p_tenant and (s.key = p_key or s.id = p_id);
end $$;

-- List subscriptions, newest first, or return one.
create or replace function interlock.subscriptions(p_tenant text, p_id uuid, p_before uuid, p_limit integer)
returns table (id uuid, url text, events text[], types text[], mode text, group_id text, min_interval_seconds double precision,
  expires_at timestamptz, ended_at timestamptz, ended_reason text, failures integer, created_at timestamptz, created_by text)
language plpgsql as $$
begin
  perform set_config('interlock.tenant', p_tenant, true);
  return query select s.id, s.url, s.events, s.types, s.mode, s.group_id, s.min_interval_seconds, s.expires_at, s.ended_at, s.ended_reason,
    s.failures, s.created_at, s.created_by
  from interlock.subscription s
  where s.tenant = p_tenant and (p_id is null or s.id = p_id) and (p_before is null or s.id < p_before) order by s.id desc limit p_limit;
end $$;

-- Delete a subscription; with the last one of a channel, also delete its pending deliveries.
create or replace function interlock.unsubscribe(p_tenant text, p_id uuid) returns boolean language plpgsql as $$
declare
  left_channel text;
begin
  perform set_config('interlock.tenant', p_tenant, true);
  delete from interlock.subscription s where s.tenant = p_tenant and s.id = p_id returning s.channel into left_channel;
  if left_channel is null then
    return false;
  end if;
  delete from interlock.webhook_throttle p where p.tenant = p_tenant and p.channel = 'subscription:' || p_id;
  if not exists (select from interlock.subscription s where s.tenant = p_tenant and s.channel = left_channel) then
    delete from interlock.outbox o where o.tenant = p_tenant and o.channel = left_channel;
    delete from interlock.webhook_throttle p where p.tenant = p_tenant and p.channel = left_channel;
  end if;
  return true;
end $$;

-- Renew a subscription, and return whether it is active. One that has ended counts against the limit of active
-- subscriptions.
create or replace function interlock.renew_subscription(p_tenant text, p_id uuid, p_expires_in double precision, p_most integer)
returns boolean language plpgsql as $$
declare
  t timestamptz := interlock.clock();
begin
  perform set_config('interlock.tenant', p_tenant, true);
  update interlock.subscription s set expires_at = t + p_expires_in * interval '1 second', ended_at = null, ended_reason = null,
    failures = 0, resting_until = null
  where s.tenant = p_tenant and s.id = p_id and ((s.ended_at is null and (s.expires_at is null or s.expires_at > t))
    or (select c.active from interlock.count_subscriptions(p_tenant) c) < p_most);
  return found;
end $$;

-- Set a new secret for a subscription, or (p_id null) for the webhooks of jobs; the previous secret also signs for a
-- while.
create or replace function interlock.rotate_secret(p_tenant text, p_id uuid, p_secret text, p_keep double precision) returns boolean
language plpgsql as $$
declare
  until timestamptz := interlock.clock() + p_keep * interval '1 second';
begin
  perform set_config('interlock.tenant', p_tenant, true);
  if p_id is null then
    insert into interlock.webhook_secret as w (tenant, secret) values (p_tenant, p_secret)
    on conflict (tenant) do update set previous_secret = w.secret, previous_until = until, secret = excluded.secret;
  else
    update interlock.subscription s set previous_secret = s.secret, previous_until = until, secret = p_secret
    where s.tenant = p_tenant and s.id = p_id;
  end if;
  return found;
end $$;

create or replace function interlock.deliveries(
  p_tenant text, p_id uuid, p_subscription_id uuid, p_job_id uuid, p_status text, p_before uuid, p_limit integer
) returns table (id uuid, event text, job_id uuid, subscription_id uuid, status text, attempts integer, at timestamptz,
  next_try_at timestamptz, last_tried_at timestamptz, last_status_code integer, last_error text, settled_at timestamptz, folded integer)
language plpgsql set plan_cache_mode = force_custom_plan as $$
declare
  its_channel text;
begin
  perform set_config('interlock.tenant', p_tenant, true);
  if p_subscription_id is not null then
    select s.channel into its_channel from interlock.subscription s where s.tenant = p_tenant and s.id = p_subscription_id;
    if its_channel is null then
      return;
    end if;
  end if;
  return query select o.id, o.event, o.job_id, o.subscription_id, o.status, o.attempts, o.at, o.next_try_at, o.last_tried_at,
    o.last_status_code, o.last_error, o.settled_at, coalesce(o.folded, 0)
  from interlock.outbox o
  where o.tenant = p_tenant and (its_channel is null or o.channel = its_channel) and (p_job_id is null or o.job_id = p_job_id)
    and (p_id is null or o.id = p_id) and (p_status is null or o.status = p_status) and (p_before is null or o.id < p_before)
  order by o.id desc limit p_limit;
end $$;

create or replace function interlock.redeliver(p_tenant text, p_id uuid) returns void language plpgsql as $$
begin
  perform set_config('interlock.tenant', p_tenant, true);
  update interlock.outbox o set status = 'pending', attempts = 0, grabs = o.grabs + 1, next_try_at = interlock.clock(), settled_at = null,
    folded = coalesce(o.folded, 0)
  where o.tenant = p_tenant and o.id = p_id;
end $$;

-- Coalesce throttled events: keep one event per receiver that may get this kind now, the newest first, or delay them
-- all. The channel's row in webhook_throttle is the lock, so that two senders do not coalesce one burst twice.
create or replace function interlock.fold_bursts(p_tenant text, p_channel text) returns void
language plpgsql as $$
declare
  t timestamptz := interlock.clock();
  kind record;
  listeners integer;
  free integer;
  soonest timestamptz;
  room integer;
  newest uuid[];
  others integer;
begin
  for kind in select o.event, o.type from interlock.outbox o
      where o.tenant = p_tenant and o.channel = p_channel and o.next_try_at <= t and o.folded is null
      group by o.event, o.type order by o.event, o.type loop
    insert into interlock.webhook_throttle (tenant, channel, event, type, quiet_until)
    values (p_tenant, p_channel, kind.event, kind.type, '-infinity') on conflict do nothing;
    perform from interlock.webhook_throttle p
    where p.tenant = p_tenant and p.channel = p_channel and p.event = kind.event and p.type = kind.type for update;
    -- Receivers that are not backing off, or all of them if every one is.
    select count(*), count(*) filter (where m.quiet_until <= t), min(m.quiet_until) into listeners, free, soonest from (
      select coalesce(p.quiet_until, '-infinity') as quiet_until, coalesce(s.resting_until > t, false) as rests,
        bool_and(coalesce(s.resting_until > t, false)) over () as all_rest
      from interlock.subscription s left join interlock.webhook_throttle p
        on p.tenant = s.tenant and p.channel = 'subscription:' || s.id and p.event = kind.event and p.type = kind.type
      where s.tenant = p_tenant and s.channel = p_channel and s.ended_at is null
        and (s.mode = 'broadcast' or (kind.event = any(s.events) and (s.expires_at is null or s.expires_at > t)
          and (s.types is null or kind.type = any(s.types))))) m
    where m.rests = m.all_rest;
    if listeners > 0 and free = 0 then
      update interlock.outbox o set next_try_at = soonest
      where o.tenant = p_tenant and o.channel = p_channel and o.event = kind.event and o.type = kind.type and o.next_try_at <= t
        and o.folded is null;
      continue;
    end if;
    -- Minus the deliveries that are already released but not yet leased.
    select case when listeners = 0 then 1 else greatest(free - count(*), 0) end into room from interlock.outbox o
    where o.tenant = p_tenant and o.channel = p_channel and o.event = kind.event and o.type = kind.type and o.next_try_at <= t
      and o.folded is not null and o.grabs = 0;
    newest := array(select o.id from interlock.outbox o
      where o.tenant = p_tenant and o.channel = p_channel and o.event = kind.event and o.type = kind.type and o.next_try_at <= t
        and o.folded is null order by o.at desc, o.id desc limit room);
    continue when newest = '{}';
    delete from interlock.outbox o
    where o.tenant = p_tenant and o.channel = p_channel and o.event = kind.event and o.type = kind.type and o.next_try_at <= t
      and o.folded is null and not o.id = any(newest);
    get diagnostics others = row_count;
    update interlock.outbox o set folded = case when o.id = newest[1] then others else 0 end
    where o.tenant = p_tenant and o.id = any(newest);
  end loop;
end $$;

-- Lease due deliveries, up to p_wants per channel; they are due again when the lease expires.
create or replace function interlock.take_deliveries(
  p_tenant text, p_channels text[], p_wants integer[], p_lease double precision, p_fresh_secret text
) returns table (id uuid, grab integer, channel text, attempts integer, event text, at timestamptz, job_id uuid, type text, status interlock.status,
  previous interlock.status, attempt integer, version integer, agent_kind text, agent_id text, tags text[], approval_id text,
  folded integer, subscription_id uuid, url text, secret text, previous_secret text) language plpgsql as $$
declare
  t timestamptz := interlock.clock();
  want record;
  due record;
  receiver record;
  gap double precision;
begin
  perform set_config('interlock.tenant', p_tenant, true);
  -- Jobs of a paused type cannot be claimed; resuming the type emits the event for jobs that are ready then.
  if exists (select from interlock.queue k where k.tenant = p_tenant and k.paused_at is not null) then
    delete from interlock.outbox o
    where o.tenant = p_tenant and o.channel = any(p_channels) and o.next_try_at <= t and o.event = 'queue.ready' and o.grabs = 0
      and exists (select from interlock.queue k where k.tenant = p_tenant and k.type = o.type and k.paused_at is not null);
  end if;
  for want in select u.channel, u.most from unnest(p_channels, p_wants) as u(channel, most) order by u.channel loop
    -- A group is throttled only if every member sets an interval.
    select coalesce(min(s.min_interval_seconds), 0) into gap from interlock.subscription s
    where s.tenant = p_tenant and s.channel = want.channel and s.ended_at is null;
    if gap > 0 then
      perform interlock.fold_bursts(p_tenant, want.channel);
    end if;
    for due in select o.* from interlock.outbox o
        where o.tenant = p_tenant and o.channel = want.channel and o.next_try_at <= t and (gap = 0 or o.folded is not null)
        order by o.next_try_at, o.id limit want.most for update skip locked loop
      if due.url is not null then
        insert into interlock.webhook_secret (tenant, secret) values (p_tenant, p_fresh_secret) on conflict do nothing;
        select null::uuid as id, due.url as url, w.secret, case when w.previous_until > t then w.previous_secret end as previous_secret
        into receiver from interlock.webhook_secret w where w.tenant = p_tenant;
      else
        -- Prefer receivers that are not backing off, then those not throttled, then round-robin.
        select s.id, s.url, s.secret, case when s.previous_until > t then s.previous_secret end as previous_secret
        into receiver from interlock.subscription s left join interlock.webhook_throttle p
          on p.tenant = s.tenant and p.channel = 'subscription:' || s.id and p.event = due.event and p.type = due.type
        where s.tenant = p_tenant and s.channel = want.channel and s.ended_at is null
          and (s.mode = 'broadcast' or (due.event = any(s.events) and (s.expires_at is null or s.expires_at > due.at)
            and (s.types is null or due.type = any(s.types))))
        order by coalesce(s.resting_until > t, false), coalesce(p.quiet_until > t, false), s.commit_seq, s.id limit 1;
        if not found then
          update interlock.outbox o set status = 'dead', next_try_at = null, settled_at = t, last_error = 'no_subscriber'
          where o.tenant = p_tenant and o.id = due.id;
          continue;
        end if;
        update interlock.subscription s
        set commit_seq = (select max(m.commit_seq) + 1 from interlock.subscription m where m.tenant = p_tenant and m.channel = want.channel)
        where s.tenant = p_tenant and s.id = receiver.id and s.mode = 'group';
        -- Throttle this kind of event for the receiver's interval; a retry to the same receiver is not a new event.
        insert into interlock.webhook_throttle (tenant, channel, event, type, quiet_until)
        select p_tenant, 'subscription:' || s.id, due.event, due.type, t + s.min_interval_seconds * interval '1 second'
        from interlock.subscription s
        where s.tenant = p_tenant and s.id = receiver.id and s.min_interval_seconds > 0 and (s.mode = 'group' or due.attempts = 0)
        on conflict on constraint webhook_throttle_pkey do update set quiet_until = excluded.quiet_until;
      end if;
      update interlock.outbox o set grabs = o.grabs + 1, next_try_at = t + p_lease * interval '1 second', subscription_id = receiver.id
      where o.tenant = p_tenant and o.id = due.id;
      return query select due.id, due.grabs + 1, due.channel, due.attempts, due.event, due.at, due.job_id, due.type, due.job_status,
        due.previous_status, due.attempt, due.version, due.agent_kind, due.agent_id, due.tags, due.approval_id, coalesce(due.folded, 0),
        receiver.id, receiver.url, receiver.secret, receiver.previous_secret;
    end loop;
  end loop;
end $$;

create or replace function interlock.give_back_delivery(p_tenant text, p_id uuid, p_grab integer, p_delay double precision) returns void
language plpgsql as $$
begin
  perform set_config('interlock.tenant', p_tenant, true);
  update interlock.outbox o set next_try_at = interlock.clock() + p_delay * interval '1 second'
  where o.tenant = p_tenant and o.id = p_id and o.grabs = p_grab and o.next_try_at is not null;
end $$;

-- Record the result of an attempt, if the caller still leases the delivery. A group passes a failed delivery to another
-- healthy member.
create or replace function interlock.settle_delivery(
  p_tenant text, p_id uuid, p_grab integer, p_status text, p_delay double precision, p_ends boolean, p_code integer, p_error text
) returns boolean language plpgsql as $$
declare
  t timestamptz := interlock.clock();
  leased record;
  new_status text := p_status;
  delay double precision := p_delay;
begin
  perform set_config('interlock.tenant', p_tenant, true);
  select o.* into leased from interlock.outbox o
  where o.tenant = p_tenant and o.id = p_id and o.grabs = p_grab and o.next_try_at is not null for update;
  if not found then
    return false;
  end if;
  if p_status = 'delivered' then
    update interlock.subscription s set failures = 0, resting_until = null
    where s.tenant = p_tenant and s.id = leased.subscription_id and s.failures > 0;
  else
    -- Back off from a failing receiver, longer each time: 5 s to 10 min.
    update interlock.subscription s set failures = s.failures + 1,
      resting_until = t + least(5 * 2 ^ least(s.failures, 10), 600) * interval '1 second',
      ended_at = case when p_ends then coalesce(s.ended_at, t) else s.ended_at end,
      ended_reason = case when p_ends then coalesce(s.ended_reason, 'gone') else s.ended_reason end
    where s.tenant = p_tenant and s.id = leased.subscription_id;
    if (delay is not null or p_ends) and exists (select from interlock.subscription s
        where s.tenant = p_tenant and s.channel = leased.channel and s.mode = 'group' and s.id <> leased.subscription_id and s.ended_at is null
          and coalesce(s.resting_until <= t, true) and leased.event = any(s.events) and (s.expires_at is null or s.expires_at > leased.at)
          and (s.types is null or leased.type = any(s.types))) then
      new_status := 'failed';
      delay := 0;
    end if;
  end if;
  update interlock.outbox o set status = new_status, attempts = o.attempts + 1, grabs = o.grabs + 1, next_try_at = t + delay * interval '1 second',
    last_tried_at = t, last_status_code = p_code, last_error = p_error, settled_at = case when delay is null then t end
  where o.tenant = p_tenant and o.id = p_id;
  if p_ends and not exists (select from interlock.subscription s
      where s.tenant = p_tenant and s.channel = leased.channel and s.ended_at is null) then
    update interlock.outbox o set status = 'dead', next_try_at = null, settled_at = t, last_error = 'gone'
    where o.tenant = p_tenant and o.channel = leased.channel and o.next_try_at is not null;
  end if;
  return true;
end $$;

create or replace function interlock.forget_deliveries(p_tenant text, p_ids uuid[]) returns integer language plpgsql as $$
declare
  gone integer;
begin
  perform set_config('interlock.tenant', p_tenant, true);
  delete from interlock.outbox o where o.tenant = p_tenant and o.id = any(p_ids) and o.settled_at is not null;
  get diagnostics gone = row_count;
  return gone;
end $$;
