-- name: jobs
SELECT {job} FROM json_each(:ids) i CROSS JOIN job_view v ON v.tenant = :tenant AND v.id = i.value;

-- name: due_leases
-- A skip scan over tenants with running jobs; other tenants cost nothing.
WITH RECURSIVE t (tenant) AS (
  SELECT min(tenant) FROM job INDEXED BY job_lease WHERE status = 'running'
  UNION ALL
  SELECT (SELECT n.tenant FROM job n INDEXED BY job_lease WHERE n.tenant > t.tenant AND n.status = 'running' ORDER BY n.tenant LIMIT 1)
  FROM t WHERE t.tenant IS NOT NULL
)
SELECT j.tenant, j.id FROM t CROSS JOIN job j INDEXED BY job_lease ON j.tenant = t.tenant
WHERE j.status = 'running' AND j.lease_expires_at <= :now LIMIT :limit;

-- name: due_deadlines
WITH RECURSIVE t (tenant) AS (
  SELECT min(tenant) FROM job INDEXED BY job_deadline
  WHERE deadline IS NOT NULL AND status IN ('queued', 'retry', 'waiting_for_approval')
  UNION ALL
  SELECT (SELECT n.tenant FROM job n INDEXED BY job_deadline WHERE n.tenant > t.tenant
    AND n.deadline IS NOT NULL AND n.status IN ('queued', 'retry', 'waiting_for_approval') ORDER BY n.tenant LIMIT 1)
  FROM t WHERE t.tenant IS NOT NULL
)
SELECT j.tenant, j.id FROM t CROSS JOIN job j INDEXED BY job_deadline ON j.tenant = t.tenant
WHERE j.deadline IS NOT NULL AND j.status IN ('queued', 'retry', 'waiting_for_approval') AND j.deadline <= :now LIMIT :limit;

-- name: raise_epoch
UPDATE epoch SET value = max(value, :above) + 1 RETURNING value;
