-- name: holder
SELECT j.attempt FROM job j WHERE j.tenant = :tenant AND j.id = :job_id AND j.fence = :fence AND j.worker = :worker
  AND j.status = 'running';

-- name: known
SELECT j.id FROM job j WHERE j.tenant = :tenant AND j.id = :job_id;

-- name: lease_end
-- The history row that ended a lease.
SELECT {history} FROM job j CROSS JOIN job_history h ON h.tenant = j.tenant AND h.seq = j.seq
WHERE j.tenant = :tenant AND j.id = :job_id AND h.fence = :fence AND h.from_status = 'running' AND h.to_status <> 'running';

-- name: job_id
j.id;
