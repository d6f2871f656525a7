-- name: count
INSERT INTO tally VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET count = count + excluded.count;

-- name: placed_later
SELECT EXISTS (SELECT 1 FROM job INDEXED BY job_of_agent WHERE tenant = ? AND line = ? AND line IS NOT NULL AND blocked = 0 AND finished_at IS NULL
  AND run_at > ? AND (status = 'queued' OR status = 'retry'));

-- name: limited
SELECT a.no, a.strict FROM json_each(:lines) l CROSS JOIN agent a ON a.tenant = :tenant AND a.no = l.value
WHERE a.max_concurrency IS NOT NULL;

-- name: settle
INSERT INTO line_to_settle VALUES (?, ?, ?);

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
