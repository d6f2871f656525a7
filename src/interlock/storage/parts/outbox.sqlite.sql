-- name: epoch
0;

-- name: first_end
min(coalesce(ended_at, expires_at), coalesce(expires_at, ended_at));

-- name: quiet_until
:now + CAST(round(s.min_interval_seconds * 1000000) AS INTEGER);

-- name: wants
-- Whether a member of a group takes an event of a type.
(instr(s.events, '"' || :event || '"') AND (s.expires_at IS NULL OR s.expires_at > :at)
  AND (s.types IS NULL OR EXISTS (SELECT 1 FROM json_each(s.types) t WHERE t.value = :type)));

-- name: due_channels
-- Channels with due deliveries, round-robin over tenants: the longest waiting channel of each tenant first, then the
-- second of each, and so on. A skip scan over tenants and channels keeps the cost independent of the backlog.
WITH RECURSIVE t (tenant) AS (
  SELECT min(tenant) FROM outbox INDEXED BY outbox_due WHERE next_try_at IS NOT NULL
  UNION ALL
  SELECT (SELECT o.tenant FROM outbox o INDEXED BY outbox_due WHERE o.tenant > t.tenant AND o.next_try_at IS NOT NULL
    ORDER BY o.tenant LIMIT 1)
  FROM t WHERE tenant IS NOT NULL
), c (tenant, channel) AS (
  SELECT tenant, (SELECT o.channel FROM outbox o INDEXED BY outbox_due WHERE o.tenant = t.tenant AND o.next_try_at IS NOT NULL
    ORDER BY o.channel LIMIT 1)
  FROM t WHERE tenant IS NOT NULL
  UNION ALL
  SELECT tenant, (SELECT o.channel FROM outbox o INDEXED BY outbox_due
    WHERE o.tenant = c.tenant AND o.channel > c.channel AND o.next_try_at IS NOT NULL ORDER BY o.channel LIMIT 1)
  FROM c WHERE channel IS NOT NULL
), due AS MATERIALIZED (
  SELECT tenant, channel, (SELECT o.next_try_at FROM outbox o INDEXED BY outbox_due
    WHERE o.tenant = c.tenant AND o.channel = c.channel AND o.next_try_at IS NOT NULL ORDER BY o.next_try_at LIMIT 1) AS since
  FROM c WHERE channel IS NOT NULL
)
SELECT tenant, channel FROM (
  SELECT tenant, channel, since, row_number() OVER (PARTITION BY tenant ORDER BY since) AS ordinal FROM due WHERE since <= :now)
ORDER BY ordinal, since LIMIT :limit;

-- name: old_subscriptions
SELECT tenant, id FROM subscription WHERE coalesce(ended_at, expires_at) <= :before LIMIT :limit;

-- name: old_deliveries
SELECT tenant, id FROM outbox WHERE settled_at <= :before ORDER BY settled_at LIMIT :limit;
