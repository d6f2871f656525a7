-- Webhook subscriptions, and the outbox: one row per event and channel, written in the transaction of the transition.

-- channel is the queue of deliveries that a subscription receives: its own, or that of its group. tags and
-- ignored_risks are filters of notification channels: a job must have one of the tags, an approval another risk.
CREATE TABLE subscription (
  tenant               TEXT NOT NULL,
  id                   TEXT NOT NULL,
  channel              TEXT NOT NULL,
  url                  TEXT NOT NULL,
  events               TEXT NOT NULL,
  types                TEXT,
  tags                 TEXT,
  ignored_risks        TEXT,
  mode                 TEXT NOT NULL CHECK (mode IN ('broadcast', 'group')),
  group_id             TEXT,
  min_interval_seconds REAL NOT NULL CHECK (min_interval_seconds >= 0),
  expires_at           INTEGER,
  ended_at             INTEGER,
  ended_reason         TEXT,
  failures             INTEGER NOT NULL DEFAULT 0,
  resting_until        INTEGER,
  commit_seq           INTEGER NOT NULL DEFAULT 0,
  secret               TEXT NOT NULL,
  previous_secret      TEXT,
  previous_until       INTEGER,
  created_at           INTEGER NOT NULL,
  created_by           TEXT NOT NULL,
  key                  TEXT,
  body_sha256          BLOB,
  PRIMARY KEY (tenant, id),
  CONSTRAINT grouped_exactly_in_group_mode CHECK ((mode = 'group') = (group_id IS NOT NULL)),
  CONSTRAINT ended_for_a_reason CHECK ((ended_at IS NULL) = (ended_reason IS NULL)),
  CONSTRAINT previous_secret_for_a_while CHECK ((previous_secret IS NULL) = (previous_until IS NULL))
) WITHOUT ROWID;
CREATE UNIQUE INDEX subscription_key ON subscription (tenant, key) WHERE key IS NOT NULL;
CREATE INDEX subscription_channel ON subscription (tenant, channel);

-- The secret that signs deliveries to the webhooks of single jobs.
CREATE TABLE webhook_secret (
  tenant          TEXT NOT NULL PRIMARY KEY,
  secret          TEXT NOT NULL,
  previous_secret TEXT,
  previous_until  INTEGER,
  CHECK ((previous_secret IS NULL) = (previous_until IS NULL))
) WITHOUT ROWID;

-- The time until which a throttled subscription receives no more events of one (event, type) pair.
CREATE TABLE webhook_throttle (
  tenant      TEXT NOT NULL,
  channel     TEXT NOT NULL,
  event       TEXT NOT NULL,
  type        TEXT NOT NULL,
  quiet_until INTEGER NOT NULL,
  PRIMARY KEY (tenant, channel, event, type)
) WITHOUT ROWID;

-- next_try_at is also the lease: a dispatcher that leases a row moves it forward, and if it dies the row becomes due
-- again. grabs is the fence of that lease. folded is the number of coalesced events, null until a throttled channel
-- releases the row. An event of a budget names it, and a job only if it has one to name.
CREATE TABLE outbox (
  tenant           TEXT NOT NULL,
  id               TEXT NOT NULL,
  channel          TEXT NOT NULL,
  event            TEXT NOT NULL,
  at               INTEGER NOT NULL,
  job_id           TEXT,
  type             TEXT NOT NULL,
  job_status       TEXT,
  previous_status  TEXT,
  attempt          INTEGER NOT NULL,
  version          INTEGER NOT NULL,
  agent_kind       TEXT,
  agent_id         TEXT,
  tags             TEXT NOT NULL,
  approval_id      TEXT,
  budget           TEXT,
  url              TEXT,
  subscription_id  TEXT,
  status           TEXT NOT NULL DEFAULT 'pending' CHECK (CASE status WHEN 'pending' THEN 1 WHEN 'delivered' THEN 1
                                                          WHEN 'failed' THEN 1 WHEN 'dead' THEN 1 ELSE 0 END),
  attempts         INTEGER NOT NULL DEFAULT 0,
  grabs            INTEGER NOT NULL DEFAULT 0,
  folded           INTEGER,
  next_try_at      INTEGER,
  last_tried_at    INTEGER,
  last_status_code INTEGER,
  last_error       TEXT,
  settled_at       INTEGER,
  PRIMARY KEY (tenant, id),
  CONSTRAINT about_a_job_or_a_budget CHECK
    ((job_id IS NULL) = (job_status IS NULL) AND (job_id IS NOT NULL OR budget IS NOT NULL)),
  CONSTRAINT due_exactly_until_settled CHECK
    ((next_try_at IS NULL) = (status = 'delivered' OR status = 'dead') AND (settled_at IS NOT NULL) = (next_try_at IS NULL))
) WITHOUT ROWID;
CREATE INDEX outbox_due ON outbox (tenant, channel, next_try_at) WHERE next_try_at IS NOT NULL;
CREATE INDEX outbox_channel ON outbox (tenant, channel, id);
CREATE INDEX outbox_job ON outbox (tenant, job_id);
CREATE INDEX outbox_settled ON outbox (settled_at) WHERE settled_at IS NOT NULL;

-- Inserting an event here adds one outbox row per subscribed channel.
CREATE VIEW event_to_deliver AS SELECT tenant, seq, '' AS event, from_status FROM job_history WHERE 0;

CREATE TRIGGER deliver_event INSTEAD OF INSERT ON event_to_deliver
BEGIN
  INSERT INTO outbox (tenant, id, channel, event, at, next_try_at, job_id, type, job_status, previous_status, attempt, version, agent_kind,
    agent_id, tags, approval_id)
  SELECT j.tenant, printf('%08x-%04x-7%03x-%04x-%012x', (interlock_clock() / 1000) >> 16, (interlock_clock() / 1000) & 65535,
      random() & 4095, 32768 | (random() & 16383), random() & 281474976710655),
    s.channel, NEW.event, interlock_clock(), max(CASE NEW.event WHEN 'queue.ready' THEN j.run_at ELSE 0 END, interlock_clock()),
    j.id, b.type, j.status, NEW.from_status, j.attempt, j.version, b.agent_kind, b.agent_id, j.tags,
    CASE WHEN NEW.event IN ('approval.requested', 'approval.decided') THEN coalesce(j.approval_id, json_extract(j.metadata, '$.approval_id')) END
  FROM subscription s
  CROSS JOIN job j ON j.tenant = NEW.tenant AND j.seq = NEW.seq
  CROSS JOIN job_body b ON b.tenant = j.tenant AND b.seq = j.seq
  WHERE s.tenant = NEW.tenant AND s.ended_at IS NULL AND instr(s.events, '"' || NEW.event || '"')
    AND (s.expires_at IS NULL OR s.expires_at > interlock_clock())
    AND (s.types IS NULL OR EXISTS (SELECT 1 FROM json_each(s.types) t WHERE t.value = b.type))
    AND (s.tags IS NULL OR EXISTS (SELECT 1 FROM json_each(s.tags) t JOIN json_each(j.tags) u ON t.value = u.value))
    AND (s.ignored_risks IS NULL OR NEW.event <> 'approval.requested' OR EXISTS (SELECT 1 FROM approval a
      WHERE a.tenant = j.tenant AND a.id = j.approval_id AND a.risk IS NOT NULL
        AND NOT EXISTS (SELECT 1 FROM json_each(s.ignored_risks) r WHERE r.value = lower(a.risk))))
    -- Jobs of one type that become ready at the same time share one event.
    AND (NEW.event <> 'queue.ready' OR (j.awaiting = 0 AND j.blocked = 0 AND NOT EXISTS (SELECT 1 FROM outbox o
      WHERE o.tenant = s.tenant AND o.channel = s.channel AND o.next_try_at = max(j.run_at, interlock_clock())
        AND o.event = 'queue.ready' AND o.type = b.type AND o.grabs = 0)))
  GROUP BY s.channel;
END;

-- Inserting a transition here delivers its events.
CREATE VIEW transition_to_deliver AS SELECT tenant, seq, from_status, to_status FROM job_history WHERE 0;

CREATE TRIGGER deliver_transition INSTEAD OF INSERT ON transition_to_deliver WHEN NEW.from_status IS NOT NEW.to_status
BEGIN
  INSERT INTO event_to_deliver
  SELECT NEW.tenant, NEW.seq, 'job.' || NEW.to_status, NEW.from_status
  UNION ALL SELECT NEW.tenant, NEW.seq, 'queue.ready', NEW.from_status WHERE NEW.to_status IN ('queued', 'retry')
  UNION ALL SELECT NEW.tenant, NEW.seq, 'approval.requested', NEW.from_status WHERE NEW.to_status = 'waiting_for_approval'
  UNION ALL SELECT NEW.tenant, NEW.seq, 'worker.stale', NEW.from_status FROM job j
    WHERE NEW.from_status = 'running' AND j.tenant = NEW.tenant AND j.seq = NEW.seq AND j.verb = 'expire'
  UNION ALL SELECT NEW.tenant, NEW.seq, 'approval.decided', NEW.from_status FROM job j
    WHERE NEW.from_status = 'waiting_for_approval' AND j.tenant = NEW.tenant AND j.seq = NEW.seq AND j.verb = 'decide';

  INSERT INTO outbox (tenant, id, channel, event, at, next_try_at, job_id, type, job_status, previous_status, attempt, version, agent_kind,
    agent_id, tags, url)
  SELECT j.tenant, printf('%08x-%04x-7%03x-%04x-%012x', (interlock_clock() / 1000) >> 16, (interlock_clock() / 1000) & 65535,
      random() & 4095, 32768 | (random() & 16383), random() & 281474976710655),
    'host:' || substr(b.rest, 1, instr(b.rest || '/', '/') - 1), 'job.' || NEW.to_status, interlock_clock(), interlock_clock(), j.id,
    b.type, NEW.to_status, NEW.from_status, j.attempt, j.version, b.agent_kind, b.agent_id, j.tags, b.webhook
  FROM (SELECT *, substr(webhook, instr(webhook, '://') + 3) AS rest FROM job_body
    WHERE tenant = NEW.tenant AND seq = NEW.seq AND webhook IS NOT NULL) b
  CROSS JOIN job j ON j.tenant = NEW.tenant AND j.seq = NEW.seq
  WHERE NEW.to_status IN ('succeeded', 'failed', 'dead_letter', 'cancelled');
END;

-- A job can become claimable without a transition: its last child ended, or it got a concurrency slot.
CREATE TRIGGER deliver_ready AFTER UPDATE OF awaiting, blocked ON job
WHEN (OLD.awaiting > 0 OR OLD.blocked = 1) AND NEW.awaiting = 0 AND NEW.blocked = 0 AND OLD.version = NEW.version
  AND EXISTS (SELECT 1 FROM subscription s WHERE s.tenant = NEW.tenant)
  AND only_interlock_may_change_jobs() IS NOT NULL  -- so that other tools fail with this name
BEGIN
  INSERT INTO event_to_deliver SELECT NEW.tenant, NEW.seq, 'queue.ready', NEW.status WHERE NEW.status IN ('queued', 'retry');
END;

-- Likewise if an edit changed its run_at.
CREATE TRIGGER deliver_new_time AFTER UPDATE OF run_at ON job
WHEN OLD.run_at <> NEW.run_at AND OLD.status = NEW.status AND NEW.awaiting = 0 AND NEW.blocked = 0
  AND EXISTS (SELECT 1 FROM subscription s WHERE s.tenant = NEW.tenant)
  AND only_interlock_may_change_jobs() IS NOT NULL
BEGIN
  INSERT INTO event_to_deliver SELECT NEW.tenant, NEW.seq, 'queue.ready', NEW.status WHERE NEW.status IN ('queued', 'retry');
END;

-- Operations deliver their own transitions; this trigger covers direct SQL.
CREATE TRIGGER deliver_change INSTEAD OF INSERT ON change_to_check
BEGIN
  INSERT INTO transition_to_deliver
  SELECT j.tenant, j.seq, NEW.status, j.status FROM job j
  WHERE j.tenant = NEW.tenant AND j.seq = NEW.seq AND j.version IS NOT NEW.version AND only_interlock_may_change_jobs();
END;
