-- name: fits
-- What every list looks at, wherever its jobs are found; {fits} in the statements below.
v.seq < :before_seq
  AND (:statuses IS NULL OR v.status IN (SELECT value FROM json_each(:statuses)))
  AND (:type IS NULL OR v.type = :type)
  AND (:worker IS NULL OR v.worker = :worker)
  AND (:agent_kind IS NULL OR (v.agent_kind = :agent_kind AND v.agent_id = :agent_id))
  AND (:stale_before IS NULL OR (v.status = 'running' AND coalesce(v.heartbeat_at, v.run_started_at) <= :stale_before))
  AND (:parent_id IS NULL OR v.parent_id = :parent_id)
  AND (:created_after IS NULL OR v.created_at >= :created_after)
  AND (:created_before IS NULL OR v.created_at < :created_before)
  AND NOT EXISTS (SELECT 1 FROM json_each(:tags) t WHERE t.value NOT IN (SELECT value FROM json_each(v.tags)));

-- name: newest
SELECT {list} FROM job_view v WHERE v.tenant = :tenant AND {fits} ORDER BY v.seq DESC LIMIT :limit;

-- name: held
SELECT {list} FROM job c INDEXED BY job_lease CROSS JOIN job_view v ON v.tenant = c.tenant AND v.seq = c.seq
WHERE c.tenant = :tenant AND c.status = 'running' AND {fits} ORDER BY v.seq DESC LIMIT :limit;

-- name: waiting
SELECT {list} FROM approval c INDEXED BY approval_open CROSS JOIN job_view v ON v.tenant = c.tenant AND v.id = c.job_id
WHERE c.tenant = :tenant AND c.status = 'open' AND {fits} ORDER BY v.seq DESC LIMIT :limit;

-- name: of_agent
SELECT {list} FROM job_body c INDEXED BY job_agent CROSS JOIN job_view v ON v.tenant = c.tenant AND v.seq = c.seq
WHERE c.tenant = :tenant AND c.agent_kind = :agent_kind AND c.agent_id = :agent_id AND c.agent_kind IS NOT NULL
  AND c.seq < :before_seq AND {fits} ORDER BY c.seq DESC LIMIT :limit;

-- name: of_parent
SELECT {list} FROM job_body c INDEXED BY job_parent CROSS JOIN job_view v ON v.tenant = c.tenant AND v.seq = c.seq
WHERE c.tenant = :tenant AND c.parent_id = :parent_id AND c.parent_id IS NOT NULL AND c.seq < :before_seq AND {fits}
ORDER BY c.seq DESC LIMIT :limit;

-- name: setbacks
-- Jobs that ended in one way other than succeeded.
SELECT {list} FROM job c INDEXED BY job_setback CROSS JOIN job_view v ON v.tenant = c.tenant AND v.seq = c.seq
WHERE c.tenant = :tenant AND c.status = :status AND c.finished_at IS NOT NULL AND c.status <> 'succeeded'
  AND c.seq < :before_seq AND {fits} ORDER BY c.seq DESC LIMIT :limit;
