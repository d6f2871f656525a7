-- name: history
-- The transitions of a job after a version.
SELECT j.id, {transition} FROM job j CROSS JOIN job_history h ON h.tenant = j.tenant AND h.seq = j.seq
WHERE j.tenant = :tenant AND j.id = :id AND h.version > :after ORDER BY h.version LIMIT :limit;

-- name: steps
-- The steps of each job after a number, at most :limit per job.
SELECT {step} FROM json_each(:ids) i CROSS JOIN job_step s ON s.tenant = :tenant AND s.job_id = i.value
WHERE s.seq IN (SELECT n.seq FROM job_step n WHERE n.tenant = :tenant AND n.job_id = i.value AND n.seq > :after
  ORDER BY n.seq LIMIT :limit);

-- name: feed
SELECT e.epoch, e.commit_seq, {event} FROM job_event e INDEXED BY job_event_feed
WHERE e.tenant = :tenant AND (e.epoch, e.commit_seq, e.job_id, e.seq) > (:epoch, :commit_seq, :job_id, :seq)
ORDER BY e.epoch, e.commit_seq, e.job_id, e.seq LIMIT :limit;

-- name: feed_end
SELECT (SELECT value FROM epoch), coalesce((SELECT last FROM event_commit_seq WHERE tenant = :tenant), 0) + 1;

-- name: parents
-- Those jobs that have children.
SELECT i.value FROM json_each(:ids) i WHERE EXISTS (SELECT 1 FROM job_body b INDEXED BY job_parent
  WHERE b.tenant = :tenant AND b.parent_id = i.value AND b.parent_id IS NOT NULL);

-- name: retrying_after
-- Jobs in status retry whose error contains a text, newest first.
SELECT j.id FROM job j INDEXED BY job_unsuccessful
WHERE j.tenant = :tenant AND j.status = 'retry' AND j.status <> 'queued' AND j.status <> 'running' AND j.status <> 'succeeded'
  AND j.status <> 'waiting_for_approval' AND instr(j.error, :text)
ORDER BY j.seq DESC LIMIT :limit;

-- name: search
-- Scans the whole ID index: fast enough for interactive search, and needs no extra index.
SELECT id FROM (
  SELECT j.id, j.seq FROM job j WHERE j.tenant = :tenant AND :id_end IS NOT NULL AND substr(j.id, -length(:id_end)) = :id_end
  UNION SELECT b.id, b.seq FROM job_body b WHERE b.tenant = :tenant AND b.idempotency_key = :text)
ORDER BY seq DESC LIMIT :limit;

-- name: search_text
-- Reads the newest jobs and the beginning of their payloads and errors.
SELECT j.id FROM (SELECT tenant, id, seq, tags, error FROM job WHERE tenant = :tenant ORDER BY seq DESC LIMIT :jobs) j
JOIN job_body b ON b.tenant = j.tenant AND b.seq = j.seq
WHERE instr(lower(substr(b.payload, 1, :chars)), :json) OR instr(lower(substr(j.error, 1, :chars)), :json)
  OR instr(lower(b.requested_by), :text) OR EXISTS (SELECT 1 FROM json_each(j.tags) t WHERE instr(lower(t.value), :text))
ORDER BY j.seq DESC LIMIT :limit;

-- name: children_after
-- A page of the children of several jobs, by parent and arrival. LIMIT -1 keeps the parents in order.
SELECT b.id, b.parent_id, b.seq, j.finished_at IS NULL, j.cancel_requested_at IS NOT NULL
FROM (SELECT DISTINCT value AS id FROM json_each(:parents) WHERE value >= :parent ORDER BY value LIMIT -1) p
CROSS JOIN job_body b INDEXED BY job_parent ON b.tenant = :tenant AND b.parent_id = p.id AND b.parent_id IS NOT NULL
CROSS JOIN job j ON j.tenant = b.tenant AND j.seq = b.seq
WHERE p.id > :parent OR b.seq > :seq LIMIT :limit;
