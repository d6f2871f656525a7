-- name: count
SELECT count(*) FROM interlock.channel WHERE tenant = :tenant;

-- name: subscription
SELECT subscription_id FROM interlock.channel WHERE tenant = :tenant AND name = :name;

-- name: set
INSERT INTO interlock.channel (tenant, name, subscription_id, kind, address, credentials, events, types, tags, min_risk,
  min_interval_seconds, created_at, created_by, updated_at)
VALUES (:tenant, :name, :subscription_id, :kind, :address, :credentials, :events, :types, :tags, :min_risk,
  :min_interval_seconds, :now, :created_by, :now)
ON CONFLICT (tenant, name) DO UPDATE SET kind = excluded.kind, address = excluded.address, credentials = excluded.credentials,
  events = excluded.events, types = excluded.types, tags = excluded.tags, min_risk = excluded.min_risk,
  min_interval_seconds = excluded.min_interval_seconds, updated_at = excluded.updated_at;

-- name: subscribe
-- The subscription of a channel names the channel instead of a URL, so that a sender reads the current destination.
INSERT INTO interlock.subscription (tenant, id, channel, url, events, types, tags, ignored_risks, mode, min_interval_seconds, secret,
  created_at, created_by)
VALUES (:tenant, :subscription_id, :queue, :url, :events, :types, :tags, :ignored_risks, 'broadcast', :min_interval_seconds, '', :now, :created_by)
ON CONFLICT (tenant, id) DO UPDATE SET events = excluded.events, types = excluded.types, tags = excluded.tags,
  ignored_risks = excluded.ignored_risks, min_interval_seconds = excluded.min_interval_seconds, ended_at = NULL, ended_reason = NULL, failures = 0, resting_until = NULL;

-- name: get
SELECT {columns} FROM interlock.channel c
LEFT JOIN interlock.subscription s ON s.tenant = c.tenant AND s.id = c.subscription_id
WHERE c.tenant = :tenant AND c.name = :name;

-- name: page
SELECT {columns} FROM interlock.channel c
LEFT JOIN interlock.subscription s ON s.tenant = c.tenant AND s.id = c.subscription_id
WHERE c.tenant = :tenant AND c.name > :after ORDER BY c.name LIMIT :limit;

-- name: target
SELECT kind, address, credentials FROM interlock.channel WHERE tenant = :tenant AND name = :name;

-- name: delete
DELETE FROM interlock.channel WHERE tenant = :tenant AND name = :name;
