-- name: histories
-- The histories of a page of jobs, in order of arrival.
SELECT j.seq, j.id, h.version, h.from_status, h.to_status, h.verb, h.actor, h.attempt, h.fence, h.reason, h.metadata, h.at, h.hash
FROM (SELECT seq, id FROM job WHERE tenant = :tenant AND seq > :after ORDER BY seq LIMIT :jobs) j
CROSS JOIN job_history h ON h.tenant = :tenant AND h.seq = j.seq
ORDER BY j.seq, h.version;

-- name: chains_part
-- A page of history chains, with the version, status and head stored in each job.
SELECT h.tenant, coalesce(j.id, 'seq ' || h.seq), h.version, h.from_status, h.to_status, h.verb, h.actor, h.attempt, h.fence,
  h.reason, h.metadata, h.at, h.hash, j.version, j.status, j.head, h.seq
FROM (SELECT DISTINCT seq FROM job_history WHERE tenant = :tenant AND seq > :after ORDER BY seq LIMIT :jobs) c
CROSS JOIN job_history h ON h.tenant = :tenant AND h.seq = c.seq
LEFT JOIN job j ON j.tenant = h.tenant AND j.seq = h.seq
ORDER BY h.seq, h.version;

-- name: bare_job
-- A job without history within a range of seqs.
SELECT j.id FROM job j WHERE j.tenant = :tenant AND j.seq > :after AND j.seq <= :upto
  AND NOT EXISTS (SELECT 1 FROM job_history h WHERE h.tenant = j.tenant AND h.seq = j.seq) LIMIT 1;

-- name: raise_epoch
UPDATE epoch SET value = max(value, :above) + 1 RETURNING value;
