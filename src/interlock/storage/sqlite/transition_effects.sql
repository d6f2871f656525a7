-- name: count
INSERT INTO tally VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET count = count + excluded.count, last_seq = max(last_seq, excluded.last_seq);

-- name: placed_later
SELECT l.value ->> 0 FROM json_each(:lines) l WHERE EXISTS (
  SELECT 1 FROM job j INDEXED BY job_of_agent
  WHERE j.tenant = :tenant AND j.line = l.value ->> 0 AND j.line IS NOT NULL AND j.blocked = 0 AND j.finished_at IS NULL
    AND j.run_at > l.value ->> 1 AND (j.status = 'queued' OR j.status = 'retry'));

-- name: limited
SELECT a.no, a.strict, a.max_concurrency, a.used, a.next_due
FROM json_each(:lines) l CROSS JOIN agent a ON a.tenant = :tenant AND a.no = l.value WHERE a.max_concurrency IS NOT NULL;

-- name: without_place
SELECT run_at, rowid FROM job INDEXED BY job_line WHERE tenant = ? AND line = ? AND blocked = 1 AND finished_at IS NULL
ORDER BY run_at, seq LIMIT ?;

-- name: first_without_place
-- The first of each line, where there is any.
SELECT l.value, j.run_at, j.rowid FROM json_each(:lines) l CROSS JOIN job j ON j.rowid = (
  SELECT c.rowid FROM job c INDEXED BY job_line WHERE c.tenant = :tenant AND c.line = l.value AND c.blocked = 1 AND c.finished_at IS NULL
  ORDER BY c.run_at, c.seq LIMIT 1);

-- name: give_places
-- By row ids, which hold as long as a transaction does: one search less for each job.
UPDATE job SET blocked = 0 WHERE rowid IN (SELECT value FROM json_each(?));

-- name: keep_line
UPDATE agent SET used = ?, next_due = ? WHERE tenant = ? AND no = ?;

-- name: deal
INSERT INTO line_to_deal VALUES (?, ?, ?);

-- name: due_lines
SELECT no FROM agent WHERE tenant = :tenant AND next_due <= :now AND next_due IS NOT NULL ORDER BY no;

-- name: any_line_due
SELECT EXISTS (SELECT 1 FROM agent WHERE tenant = :tenant AND next_due <= :now AND next_due IS NOT NULL);

-- name: tenants_with_due_lines
WITH RECURSIVE t (tenant) AS (
  SELECT min(tenant) FROM agent INDEXED BY agent_due WHERE next_due IS NOT NULL
  UNION ALL
  SELECT (SELECT n.tenant FROM agent n INDEXED BY agent_due WHERE n.tenant > t.tenant AND n.next_due IS NOT NULL ORDER BY n.tenant LIMIT 1)
  FROM t WHERE t.tenant IS NOT NULL
)
SELECT t.tenant FROM t WHERE EXISTS
  (SELECT 1 FROM agent a WHERE a.tenant = t.tenant AND a.next_due <= :now AND a.next_due IS NOT NULL) LIMIT :limit;
