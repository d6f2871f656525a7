-- name: any_subscriber
-- Whether a tenant has subscriptions, and whether any of its jobs has its own webhook.
SELECT EXISTS (SELECT 1 FROM subscription WHERE tenant = :tenant AND ended_at IS NULL),
  EXISTS (SELECT 1 FROM job_body INDEXED BY job_webhook WHERE tenant = :tenant AND webhook IS NOT NULL);

-- name: deliver
INSERT INTO transition_to_deliver VALUES (?, ?, ?, ?);

-- name: count_subscriptions
-- Active subscriptions, and all.
SELECT count(*) FILTER (WHERE ended_at IS NULL AND (expires_at IS NULL OR expires_at > :now)), count(*)
FROM subscription WHERE tenant = :tenant;

-- name: longest_ended
SELECT id FROM subscription WHERE tenant = :tenant AND (ended_at IS NOT NULL OR expires_at <= :now)
ORDER BY min(coalesce(ended_at, expires_at), coalesce(expires_at, ended_at)), id LIMIT 1;

-- name: by_key
SELECT id, body_sha256 FROM subscription WHERE tenant = :tenant AND key = :key;

-- name: subscribe
INSERT INTO subscription (tenant, id, channel, url, events, types, mode, group_id, min_interval_seconds, expires_at, secret, created_at,
  created_by, key, body_sha256)
VALUES (:tenant, :id, :channel, :url, :events, :types, :mode, :group_id, :min_interval_seconds, :expires_at, :secret, :now, :created_by,
  :key, :body_sha256)
ON CONFLICT DO NOTHING;

-- name: subscriptions
-- Newest first; all, or one by ID.
SELECT id, url, events, types, mode, group_id, min_interval_seconds, expires_at, ended_at, ended_reason, failures, created_at, created_by
FROM subscription WHERE tenant = :tenant AND (:id IS NULL OR id = :id) AND (:before IS NULL OR id < :before)
ORDER BY id DESC LIMIT :limit;

-- name: channel
SELECT channel FROM subscription WHERE tenant = :tenant AND id = :id;

-- name: unsubscribe
DELETE FROM subscription WHERE tenant = :tenant AND id = :id RETURNING channel;

-- name: close_channel
-- Delete the deliveries of a channel without subscriptions.
DELETE FROM outbox WHERE tenant = :tenant AND channel = :channel
  AND NOT EXISTS (SELECT 1 FROM subscription s WHERE s.tenant = :tenant AND s.channel = :channel);

-- name: forget_throttle
DELETE FROM webhook_throttle WHERE tenant = :tenant AND channel = 'subscription:' || :id;

-- name: renew
UPDATE subscription SET expires_at = :expires_at, ended_at = NULL, ended_reason = NULL, failures = 0, resting_until = NULL
WHERE tenant = :tenant AND id = :id RETURNING id;

-- name: rotate
UPDATE subscription SET previous_secret = secret, previous_until = :until, secret = :secret WHERE tenant = :tenant AND id = :id RETURNING id;

-- name: rotate_job_secret
INSERT INTO webhook_secret (tenant, secret) VALUES (:tenant, :secret)
ON CONFLICT DO UPDATE SET previous_secret = secret, previous_until = :until, secret = excluded.secret;

-- name: first_job_secret
INSERT INTO webhook_secret (tenant, secret) VALUES (:tenant, :secret) ON CONFLICT DO NOTHING;

-- name: job_secret
SELECT secret, CASE WHEN previous_until > :now THEN previous_secret END FROM webhook_secret WHERE tenant = :tenant;

-- name: deliveries
-- {which} selects all deliveries, or those of a channel, of a job, or one by ID.
SELECT id, event, job_id, subscription_id, status, attempts, at, next_try_at, last_tried_at, last_status_code, last_error, settled_at,
  coalesce(folded, 0)
FROM outbox WHERE tenant = :tenant AND {which} AND (:status IS NULL OR status = :status) AND id < :before
ORDER BY id DESC LIMIT :limit;

-- name: redeliver
UPDATE outbox SET status = 'pending', attempts = 0, grabs = grabs + 1, next_try_at = :now, settled_at = NULL, folded = coalesce(folded, 0)
WHERE tenant = :tenant AND id = :id RETURNING id;

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

-- name: drop_vain_calls
-- No worker can claim jobs of a paused type; resuming the type delivers queue.ready again.
DELETE FROM outbox INDEXED BY outbox_due WHERE tenant = :tenant AND channel = :channel AND next_try_at <= :now AND event = 'queue.ready' AND grabs = 0
  AND type IN (SELECT type FROM queue WHERE tenant = :tenant AND paused_at IS NOT NULL);

-- name: interval
-- The throttle interval of a channel; a group is throttled only if every member is.
SELECT coalesce(min(min_interval_seconds), 0) FROM subscription WHERE tenant = :tenant AND channel = :channel AND ended_at IS NULL;

-- name: bursts
-- The (event, type) pairs with due deliveries that are not yet coalesced.
SELECT DISTINCT event, type FROM outbox WHERE tenant = :tenant AND channel = :channel AND next_try_at <= :now AND folded IS NULL;

-- name: quiet
-- The throttle end of each possible receiver: of those that are not backing off, or of all if every one is.
SELECT quiet_until FROM (
  SELECT coalesce(p.quiet_until, 0) AS quiet_until, coalesce(s.resting_until, 0) > :now AS rests,
    min(coalesce(s.resting_until, 0) > :now) OVER () AS all_rest
  FROM subscription s
  LEFT JOIN webhook_throttle p ON p.tenant = s.tenant AND p.channel = 'subscription:' || s.id AND p.event = :event AND p.type = :type
  WHERE s.tenant = :tenant AND s.channel = :channel AND s.ended_at IS NULL
    AND (s.mode = 'broadcast' OR (instr(s.events, '"' || :event || '"') AND (s.expires_at IS NULL OR s.expires_at > :now)
      AND (s.types IS NULL OR EXISTS (SELECT 1 FROM json_each(s.types) t WHERE t.value = :type)))))
WHERE rests = all_rest;

-- name: let_go_before
-- Deliveries of an (event, type) pair that were released but not yet leased.
SELECT count(*) FROM outbox WHERE tenant = :tenant AND channel = :channel AND event = :event AND type = :type AND next_try_at <= :now
  AND folded IS NOT NULL AND grabs = 0;

-- name: newest
SELECT id FROM outbox WHERE tenant = :tenant AND channel = :channel AND event = :event AND type = :type AND next_try_at <= :now
  AND folded IS NULL ORDER BY at DESC, id DESC LIMIT :room;

-- name: postpone
UPDATE outbox SET next_try_at = :quiet_until
WHERE tenant = :tenant AND channel = :channel AND event = :event AND type = :type AND next_try_at <= :now AND folded IS NULL;

-- name: let_go
UPDATE outbox SET folded = :others WHERE tenant = :tenant AND id = :id;

-- name: fold
DELETE FROM outbox WHERE tenant = :tenant AND channel = :channel AND event = :event AND type = :type AND next_try_at <= :now
  AND folded IS NULL;

-- name: keep_quiet
-- Throttle the receiver for its interval. A retry to the same receiver does not extend it.
INSERT INTO webhook_throttle (tenant, channel, event, type, quiet_until)
SELECT tenant, 'subscription:' || id, :event, :type, :now + CAST(round(min_interval_seconds * 1000000) AS INTEGER) FROM subscription
WHERE tenant = :tenant AND id = :id AND min_interval_seconds > 0 AND (mode = 'group' OR :attempts = 0)
ON CONFLICT DO UPDATE SET quiet_until = excluded.quiet_until;

-- name: due
SELECT id, grabs + 1, channel, attempts, event, at, job_id, type, job_status, previous_status, attempt, version, agent_kind, agent_id, tags,
  approval_id, coalesce(folded, 0), url
FROM outbox WHERE tenant = :tenant AND channel = :channel AND next_try_at <= :now AND (folded IS NOT NULL OR NOT :folds)
ORDER BY next_try_at, id LIMIT :want;

-- name: receiver
-- The receiver of an event: prefer receivers that are not backing off, then those that are not throttled, then
-- round-robin.
SELECT s.id, url, secret, CASE WHEN previous_until > :now THEN previous_secret END FROM subscription s
LEFT JOIN webhook_throttle p ON p.tenant = s.tenant AND p.channel = 'subscription:' || s.id AND p.event = :event AND p.type = :type
WHERE s.tenant = :tenant AND s.channel = :channel AND ended_at IS NULL
  AND (mode = 'broadcast' OR (instr(events, '"' || :event || '"') AND (expires_at IS NULL OR expires_at > :at)
    AND (types IS NULL OR EXISTS (SELECT 1 FROM json_each(types) t WHERE t.value = :type))))
ORDER BY coalesce(resting_until, 0) > :now, coalesce(quiet_until, 0) > :now, commit_seq, s.id LIMIT 1;

-- name: next_commit_seq
UPDATE subscription SET commit_seq = (SELECT max(commit_seq) + 1 FROM subscription s WHERE s.tenant = :tenant AND s.channel = :channel)
WHERE tenant = :tenant AND id = :id AND mode = 'group';

-- name: take
UPDATE outbox SET grabs = ?, next_try_at = ?, subscription_id = ? WHERE tenant = ? AND id = ?;

-- name: give_back
UPDATE outbox SET next_try_at = :next_try_at WHERE tenant = :tenant AND id = :id AND grabs = :grab AND next_try_at IS NOT NULL;

-- name: no_subscriber
UPDATE outbox SET status = 'dead', next_try_at = NULL, settled_at = :now, last_error = 'no_subscriber' WHERE tenant = :tenant AND id = :id;

-- name: leased
SELECT channel, subscription_id, event, type, at FROM outbox WHERE tenant = :tenant AND id = :id AND grabs = :grab AND next_try_at IS NOT NULL;

-- name: settle
UPDATE outbox SET status = :status, attempts = attempts + 1, grabs = grabs + 1, next_try_at = :next_try_at, last_tried_at = :now,
  last_status_code = :status_code, last_error = :error, settled_at = CASE WHEN :next_try_at IS NULL THEN :now END
WHERE tenant = :tenant AND id = :id;

-- name: answered
UPDATE subscription SET failures = 0, resting_until = NULL WHERE tenant = :tenant AND id = :id AND failures > 0;

-- name: failed
-- Exponential backoff for a failing receiver: 5 s to 10 min.
UPDATE subscription SET failures = failures + 1, resting_until = :now + min(5000000 << min(failures, 10), 600000000)
WHERE tenant = :tenant AND id = :id;

-- name: end_subscription
UPDATE subscription SET ended_at = :now, ended_reason = 'gone' WHERE tenant = :tenant AND id = :id AND ended_at IS NULL;

-- name: end_deliveries
-- Mark the pending deliveries of a channel without an active subscription as dead.
UPDATE outbox SET status = 'dead', next_try_at = NULL, settled_at = :now, last_error = 'gone'
WHERE tenant = :tenant AND channel = :channel AND next_try_at IS NOT NULL
  AND NOT EXISTS (SELECT 1 FROM subscription s WHERE s.tenant = :tenant AND s.channel = :channel AND s.ended_at IS NULL);

-- name: awake
-- Whether another member of the group can receive the event now.
SELECT EXISTS (SELECT 1 FROM subscription WHERE tenant = :tenant AND channel = :channel AND mode = 'group' AND id <> :id
  AND ended_at IS NULL AND coalesce(resting_until, 0) <= :now AND instr(events, '"' || :event || '"')
  AND (expires_at IS NULL OR expires_at > :at)
  AND (types IS NULL OR EXISTS (SELECT 1 FROM json_each(types) t WHERE t.value = :type)));

-- name: old_subscriptions
SELECT tenant, id FROM subscription WHERE coalesce(ended_at, expires_at) <= :before LIMIT :limit;

-- name: forget_deliveries
DELETE FROM outbox WHERE (tenant, id) IN (SELECT tenant, id FROM outbox WHERE settled_at <= :before ORDER BY settled_at LIMIT :limit);
