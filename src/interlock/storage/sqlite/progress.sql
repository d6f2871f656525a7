-- name: leases
-- The current lease of each job, if any.
SELECT j.id, j.status, j.fence, j.worker FROM json_each(:ids) i CROSS JOIN job j ON j.tenant = :tenant AND j.id = i.value;

-- name: known_steps
-- The steps [job, name, occurrence] that are already saved.
SELECT s.job_id, s.seq, s.name, s.occurrence, s.result, s.function, s.fence, s.at, s.sanitized
FROM json_each(:steps) i CROSS JOIN job_step s INDEXED BY job_step_once
  ON s.tenant = :tenant AND s.job_id = i.value ->> 0 AND s.name = i.value ->> 1 AND s.occurrence = i.value ->> 2;

-- name: last_steps
SELECT i.value, coalesce((SELECT max(s.seq) FROM job_step s WHERE s.tenant = :tenant AND s.job_id = i.value), 0) FROM json_each(:ids) i;

-- name: insert_step
INSERT INTO job_step (tenant, job_id, seq, name, occurrence, result, function, fence, at, sanitized)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: known_events
-- The events [job, ID] that are already stored.
SELECT e.job_id, e.id, e.seq FROM json_each(:events) i CROSS JOIN job_event e INDEXED BY job_event_once
  ON e.tenant = :tenant AND e.job_id = i.value ->> 0 AND e.id = i.value ->> 1;

-- name: last_events
-- The number of the last event of each job, and the start of its lease.
SELECT i.value, coalesce((SELECT max(e.seq) FROM job_event e WHERE e.tenant = :tenant AND e.job_id = i.value), 0), j.run_started_at
FROM json_each(:ids) i CROSS JOIN job j ON j.tenant = :tenant AND j.id = i.value;

-- name: next_commit_seq
-- One number per transaction that adds events. SQLite has one writer at a time, so numbers rise in commit order.
INSERT INTO event_commit_seq (tenant, last) VALUES (:tenant, 1) ON CONFLICT DO UPDATE SET last = last + 1
RETURNING last, (SELECT value FROM epoch);

-- name: insert_event
INSERT INTO job_event (tenant, epoch, commit_seq, job_id, seq, id, level, message, payload, fence, at, received_at, sanitized)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);
