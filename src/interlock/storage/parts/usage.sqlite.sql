-- name: used
-- The total that a job reported with its result; else what its runs kept as steps (domain/usage.py, summed).
used AS (
  SELECT j.id, b.type, b.agent_kind, b.agent_id, b.parent_id, j.finished_at, r.usage AS amounts
  FROM job j CROSS JOIN job_result r ON r.tenant = j.tenant AND r.seq = j.seq CROSS JOIN job_body b ON b.tenant = j.tenant AND b.seq = j.seq
  WHERE j.tenant = :tenant AND j.status = 'succeeded' AND j.finished_at >= :since AND j.finished_at < :until AND r.usage IS NOT NULL
  UNION ALL
  SELECT j.id, b.type, b.agent_kind, b.agent_id, b.parent_id, j.finished_at, s.result
  FROM job j CROSS JOIN job_step s INDEXED BY job_step_once ON s.tenant = j.tenant AND s.job_id = j.id AND s.name = :step
  CROSS JOIN job_body b ON b.tenant = j.tenant AND b.seq = j.seq
  WHERE j.tenant = :tenant AND j.finished_at >= :since AND j.finished_at < :until AND j.fence > (j.status = 'succeeded')
    AND NOT (j.status = 'succeeded' AND EXISTS
      (SELECT 1 FROM job_result r WHERE r.tenant = j.tenant AND r.seq = j.seq AND r.usage IS NOT NULL))
    AND (s.function = 'run ' || j.id OR s.function = 'retold ' || j.id AND NOT EXISTS
      (SELECT 1 FROM job_step x INDEXED BY job_step_once
       WHERE x.tenant = s.tenant AND x.job_id = s.job_id AND x.name = s.name AND x.function = s.function AND x.seq > s.seq)))

-- name: day
date(u.finished_at / 1000000, 'unixepoch')

-- name: sums
-- Any worker can save a step of this name with any content. A sum is at most the largest float.
sums(one, two, unit, amount) AS (
  SELECT k.one, k.two, NULL, count(DISTINCT k.id) FROM keyed k GROUP BY 1, 2
  UNION ALL
  SELECT k.one, k.two, a.key, min(total(a.value), 1.7976931348623157e308) FROM keyed k CROSS JOIN json_each(k.amounts) a
  WHERE json_type(k.amounts) = 'object' AND a.type IN ('integer', 'real') AND a.value BETWEEN 0 AND 1.7976931348623157e308
    AND length(a.key) BETWEEN 1 AND 200 GROUP BY 1, 2, 3)

-- name: ancestors
WITH RECURSIVE up(id, ancestor, depth) AS (
  SELECT i.value, i.value, 0 FROM json_each(:ids) i
  UNION ALL
  SELECT up.id, b.parent_id, up.depth + 1 FROM up CROSS JOIN job j ON j.tenant = :tenant AND j.id = up.ancestor
  CROSS JOIN job_body b ON b.tenant = j.tenant AND b.seq = j.seq WHERE b.parent_id IS NOT NULL AND up.depth < 1000
),
top(id, ancestor, depth) AS (SELECT up.id, up.ancestor, max(up.depth) FROM up GROUP BY up.id)
SELECT top.id, top.ancestor FROM top WHERE top.depth > 0;
