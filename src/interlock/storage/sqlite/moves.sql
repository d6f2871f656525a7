-- name: count
INSERT INTO tally VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET count = count + excluded.count;

-- name: placed_later
SELECT EXISTS (SELECT 1 FROM job WHERE tenant = ? AND line = ? AND line IS NOT NULL AND blocked = 0 AND finished_at IS NULL
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
SELECT t.tenant FROM tenant t WHERE EXISTS
  (SELECT 1 FROM agent a WHERE a.tenant = t.tenant AND a.next_due <= :now AND a.next_due IS NOT NULL) LIMIT :limit;
