-- name: count_subscriptions
-- Active subscriptions, and all.
SELECT count(*) FILTER (WHERE ended_at IS NULL AND (expires_at IS NULL OR expires_at > :now)), count(*)
FROM interlock.subscription WHERE tenant = :tenant;

-- name: longest_ended
SELECT id FROM interlock.subscription WHERE tenant = :tenant AND (ended_at IS NOT NULL OR expires_at <= :now)
ORDER BY {first_end}, id LIMIT 1;

-- name: existing
SELECT id, body_sha256 FROM interlock.subscription WHERE tenant = :tenant AND (key = :key OR id = :id);

-- name: subscribe
INSERT INTO interlock.subscription (tenant, id, channel, url, events, types, mode, group_id, min_interval_seconds, expires_at, secret,
  created_at, created_by, key, body_sha256)
VALUES (:tenant, :id, :channel, :url, :events, :types, :mode, :group_id, :min_interval_seconds, :expires_at, :secret, :now, :created_by,
  :key, :body_sha256)
ON CONFLICT DO NOTHING;

-- name: subscriptions
SELECT {subscription} FROM interlock.subscription s WHERE s.tenant = :tenant AND s.id < :before AND {own}
ORDER BY s.id DESC LIMIT :limit;

-- name: subscription_by_id
SELECT {subscription} FROM interlock.subscription s WHERE s.tenant = :tenant AND s.id = :id AND {own};

-- name: own
-- Subscriptions that users made: not those that queue the deliveries of notification channels.
(s.url NOT LIKE 'channel:%');

-- name: channel
SELECT channel FROM interlock.subscription WHERE tenant = :tenant AND id = :id;

-- name: unsubscribe
DELETE FROM interlock.subscription WHERE tenant = :tenant AND id = :id RETURNING channel;

-- name: close_channel
-- Delete the deliveries of a channel without subscriptions.
DELETE FROM interlock.outbox WHERE tenant = :tenant AND channel = :channel
  AND NOT EXISTS (SELECT 1 FROM interlock.subscription s WHERE s.tenant = :tenant AND s.channel = :channel);

-- name: close_throttle
DELETE FROM interlock.webhook_throttle WHERE tenant = :tenant AND channel = :channel
  AND NOT EXISTS (SELECT 1 FROM interlock.subscription s WHERE s.tenant = :tenant AND s.channel = :channel);

-- name: forget_throttle
DELETE FROM interlock.webhook_throttle WHERE tenant = :tenant AND channel = :channel;

-- name: renew
UPDATE interlock.subscription SET expires_at = :expires_at, ended_at = NULL, ended_reason = NULL, failures = 0, resting_until = NULL
WHERE tenant = :tenant AND id = :id;

-- name: rotate
UPDATE interlock.subscription SET previous_secret = secret, previous_until = :until, secret = :secret WHERE tenant = :tenant AND id = :id;

-- name: rotate_job_secret
INSERT INTO interlock.webhook_secret AS w (tenant, secret) VALUES (:tenant, :secret)
ON CONFLICT (tenant) DO UPDATE SET previous_secret = w.secret, previous_until = :until, secret = excluded.secret;

-- name: first_job_secret
INSERT INTO interlock.webhook_secret (tenant, secret) VALUES (:tenant, :secret) ON CONFLICT DO NOTHING;

-- name: job_secret
SELECT secret, CASE WHEN previous_until > :now THEN previous_secret END FROM interlock.webhook_secret WHERE tenant = :tenant;

-- name: deliveries
-- One statement per index: an optional condition would keep SQLite from using it.
SELECT {delivery} FROM interlock.outbox o WHERE o.tenant = :tenant AND {matching} ORDER BY o.id DESC LIMIT :limit;

-- name: deliveries_of_channel
SELECT {delivery} FROM interlock.outbox o WHERE o.tenant = :tenant AND o.channel = :channel AND {matching}
ORDER BY o.id DESC LIMIT :limit;

-- name: deliveries_of_job
SELECT {delivery} FROM interlock.outbox o WHERE o.tenant = :tenant AND o.job_id = :job_id AND {matching}
ORDER BY o.id DESC LIMIT :limit;

-- name: delivery_by_id
SELECT {delivery} FROM interlock.outbox o WHERE o.tenant = :tenant AND o.id = :id AND {matching} ORDER BY o.id DESC LIMIT :limit;

-- name: matching
(o.channel = :channel OR :channel IS NULL) AND (o.job_id = :job_id OR :job_id IS NULL) AND (o.status = :status OR :status IS NULL)
  AND o.id < :before;

-- name: redeliver
UPDATE interlock.outbox SET status = 'pending', attempts = 0, grabs = grabs + 1, next_try_at = :now, settled_at = NULL,
  folded = coalesce(folded, 0)
WHERE tenant = :tenant AND id = :id;

-- name: drop_vain_calls
-- No worker can claim jobs of a paused type; resuming the type delivers queue.ready again.
DELETE FROM interlock.outbox {by outbox_due} WHERE tenant = :tenant AND channel = :channel AND next_try_at <= :now
  AND event = 'queue.ready' AND grabs = 0
  AND type IN (SELECT type FROM interlock.queue WHERE tenant = :tenant AND paused_at IS NOT NULL);

-- name: interval
-- The throttle interval of a channel; a group is throttled only if every member is.
SELECT coalesce(min(min_interval_seconds), 0) FROM interlock.subscription
WHERE tenant = :tenant AND channel = :channel AND ended_at IS NULL;

-- name: bursts
-- The (event, type) pairs with due deliveries that are not yet coalesced.
SELECT DISTINCT event, type FROM interlock.outbox
WHERE tenant = :tenant AND channel = :channel AND next_try_at <= :now AND folded IS NULL ORDER BY event, type;

-- name: lock_burst
INSERT INTO interlock.webhook_throttle AS p (tenant, channel, event, type, quiet_until)
VALUES (:tenant, :channel, :event, :type, {epoch})
ON CONFLICT (tenant, channel, event, type) DO UPDATE SET quiet_until = p.quiet_until;

-- name: quiet
-- The throttle end of each possible receiver, and whether it is backing off.
SELECT coalesce(p.quiet_until, {epoch}), coalesce(s.resting_until > :now, FALSE) FROM interlock.subscription s
LEFT JOIN interlock.webhook_throttle p
  ON p.tenant = s.tenant AND p.channel = 'subscription:' || s.id AND p.event = :event AND p.type = :type
WHERE s.tenant = :tenant AND s.channel = :channel AND s.ended_at IS NULL AND (s.mode = 'broadcast' OR {wants});

-- name: let_go_before
-- Deliveries of an (event, type) pair that were released but not yet leased.
SELECT count(*) FROM interlock.outbox WHERE tenant = :tenant AND channel = :channel AND event = :event AND type = :type
  AND next_try_at <= :now AND folded IS NOT NULL AND grabs = 0;

-- name: newest
SELECT id FROM interlock.outbox WHERE tenant = :tenant AND channel = :channel AND event = :event AND type = :type
  AND next_try_at <= :now AND folded IS NULL ORDER BY at DESC, id DESC LIMIT :room;

-- name: postpone
UPDATE interlock.outbox SET next_try_at = :quiet_until
WHERE tenant = :tenant AND channel = :channel AND event = :event AND type = :type AND next_try_at <= :now AND folded IS NULL;

-- name: let_go
UPDATE interlock.outbox SET folded = :others WHERE tenant = :tenant AND id = :id;

-- name: fold
DELETE FROM interlock.outbox WHERE tenant = :tenant AND channel = :channel AND event = :event AND type = :type
  AND next_try_at <= :now AND folded IS NULL;

-- name: due
SELECT id, grabs + 1, channel, attempts, event, at, coalesce(CAST(job_id AS text), ''), type, coalesce(CAST(job_status AS text), ''),
  previous_status, attempt, version, agent_kind, agent_id, tags, approval_id, budget, coalesce(folded, 0), url
FROM interlock.outbox WHERE tenant = :tenant AND channel = :channel AND next_try_at <= :now AND (folded IS NOT NULL OR NOT :folds)
ORDER BY next_try_at, id LIMIT :want {for update skip locked};

-- name: receiver
-- The receiver of an event: prefer receivers that are not backing off, then those that are not throttled, then
-- round-robin.
SELECT s.id, s.url, s.secret, CASE WHEN s.previous_until > :now THEN s.previous_secret END FROM interlock.subscription s
LEFT JOIN interlock.webhook_throttle p
  ON p.tenant = s.tenant AND p.channel = 'subscription:' || s.id AND p.event = :event AND p.type = :type
WHERE s.tenant = :tenant AND s.channel = :channel AND s.ended_at IS NULL AND (s.mode = 'broadcast' OR {wants})
ORDER BY coalesce(s.resting_until > :now, FALSE), coalesce(p.quiet_until > :now, FALSE), s.commit_seq, s.id LIMIT 1;

-- name: next_turn
UPDATE interlock.subscription
SET commit_seq = (SELECT max(s.commit_seq) + 1 FROM interlock.subscription s WHERE s.tenant = :tenant AND s.channel = :channel)
WHERE tenant = :tenant AND id = :id AND mode = 'group';

-- name: keep_quiet
-- Throttle the receiver for its interval. A retry to the same receiver does not extend it.
INSERT INTO interlock.webhook_throttle (tenant, channel, event, type, quiet_until)
SELECT s.tenant, 'subscription:' || s.id, :event, :type, {quiet_until} FROM interlock.subscription s
WHERE s.tenant = :tenant AND s.id = :id AND s.min_interval_seconds > 0 AND (s.mode = 'group' OR :attempts = 0)
ON CONFLICT (tenant, channel, event, type) DO UPDATE SET quiet_until = excluded.quiet_until;

-- name: take
UPDATE interlock.outbox SET grabs = :grab, next_try_at = :next_try_at, subscription_id = :subscription_id
WHERE tenant = :tenant AND id = :id;

-- name: give_back
UPDATE interlock.outbox SET next_try_at = :next_try_at
WHERE tenant = :tenant AND id = :id AND grabs = :grab AND next_try_at IS NOT NULL;

-- name: no_subscriber
UPDATE interlock.outbox SET status = 'dead', next_try_at = NULL, settled_at = :now, last_error = 'no_subscriber'
WHERE tenant = :tenant AND id = :id;

-- name: leased
SELECT channel, subscription_id, event, type, at FROM interlock.outbox
WHERE tenant = :tenant AND id = :id AND grabs = :grab AND next_try_at IS NOT NULL {for update};

-- name: settle
UPDATE interlock.outbox SET status = :status, attempts = attempts + 1, grabs = grabs + 1, next_try_at = :next_try_at,
  last_tried_at = :now, last_status_code = :status_code, last_error = :error,
  settled_at = :settled_at
WHERE tenant = :tenant AND id = :id;

-- name: answered
UPDATE interlock.subscription SET failures = 0, resting_until = NULL WHERE tenant = :tenant AND id = :id AND failures > 0;

-- name: failures
SELECT failures FROM interlock.subscription WHERE tenant = :tenant AND id = :id {for update};

-- name: failed
UPDATE interlock.subscription SET failures = :failures, resting_until = :resting_until WHERE tenant = :tenant AND id = :id;

-- name: awake
-- Whether another member of the group can receive the event now.
SELECT EXISTS (SELECT 1 FROM interlock.subscription s
  WHERE s.tenant = :tenant AND s.channel = :channel AND s.mode = 'group' AND s.id <> :id AND s.ended_at IS NULL
    AND coalesce(s.resting_until <= :now, TRUE) AND {wants});

-- name: end_subscription
UPDATE interlock.subscription SET ended_at = :now, ended_reason = 'gone' WHERE tenant = :tenant AND id = :id AND ended_at IS NULL;

-- name: end_deliveries
-- Mark the pending deliveries of a channel without an active subscription as dead.
UPDATE interlock.outbox SET status = 'dead', next_try_at = NULL, settled_at = :now, last_error = 'gone'
WHERE tenant = :tenant AND channel = :channel AND next_try_at IS NOT NULL AND NOT EXISTS
  (SELECT 1 FROM interlock.subscription s WHERE s.tenant = :tenant AND s.channel = :channel AND s.ended_at IS NULL);

-- name: forget
DELETE FROM interlock.outbox WHERE tenant = :tenant AND id {in ids} AND settled_at IS NOT NULL;
