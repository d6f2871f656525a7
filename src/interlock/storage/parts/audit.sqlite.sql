-- name: of_job
h.seq = j.seq;

-- name: position
j.seq;

-- name: chains
-- A page of history chains, with the version, status and head stored in each job, and the position of the chain.
SELECT h.tenant, coalesce(j.id, 'seq ' || h.seq), {transition}, j.version, j.status, j.head, h.seq
FROM (SELECT DISTINCT seq FROM job_history WHERE tenant = :tenant AND seq > :after ORDER BY seq LIMIT :jobs) c
CROSS JOIN job_history h ON h.tenant = :tenant AND h.seq = c.seq
LEFT JOIN job j ON j.tenant = h.tenant AND j.seq = h.seq
ORDER BY h.seq, h.version;

-- name: kept
-- The digests of the current values of some jobs.
SELECT j.id, digest(b.payload), CASE WHEN b.seq IS NOT NULL THEN interlock_digest_options({options}) END, digest(r.result),
  digest(r.result_summary), digest(r.usage), digest(j.error),
  CASE WHEN c.data IS NOT NULL THEN interlock_digest_fields(c.seq, c.data) END, c.at
FROM json_each(:ids) i CROSS JOIN job j ON j.tenant = :tenant AND j.id = i.value
LEFT JOIN job_body b ON b.tenant = j.tenant AND b.seq = j.seq
LEFT JOIN job_result r ON r.tenant = j.tenant AND r.seq = j.seq
LEFT JOIN job_checkpoint c ON c.tenant = j.tenant AND c.job_id = j.id;

-- name: tenants
-- Includes tenants that appear only in the history, so that an audit does not skip them.
WITH RECURSIVE h (tenant) AS (
  SELECT min(tenant) FROM job_history
  UNION ALL
  SELECT (SELECT n.tenant FROM job_history n WHERE n.tenant > h.tenant ORDER BY n.tenant LIMIT 1) FROM h WHERE h.tenant IS NOT NULL
)
SELECT tenant FROM tenant UNION SELECT tenant FROM h WHERE tenant IS NOT NULL;
