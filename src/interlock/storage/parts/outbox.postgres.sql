-- name: epoch
'epoch'::timestamptz;

-- name: first_end
least(ended_at, expires_at);

-- name: quiet_until
:now + s.min_interval_seconds * interval '1 second';

-- name: wants
-- Whether a member of a group takes an event of a type.
(:event = any(s.events) and (s.expires_at is null or s.expires_at > :at) and (s.types is null or :type = any(s.types)));

-- name: due_channels
select tenant, channel from interlock.due_channels(:now, :limit);

-- name: old_subscriptions
select tenant, id from interlock.old_subscriptions(:before, :limit);

-- name: old_deliveries
select tenant, id from interlock.old_deliveries(:before, :limit);
