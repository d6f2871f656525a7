-- name: long_tails
-- Tenants with at least :jobs jobs after their last job block.
SELECT t.tenant FROM (
  SELECT tenant, next_seq,
    coalesce((SELECT s.last_seq FROM job_block s WHERE s.tenant = tenant.tenant ORDER BY s.first_seq DESC LIMIT 1), 0) AS noted
  FROM tenant) t
WHERE t.next_seq - t.noted > :jobs
  AND EXISTS (SELECT 1 FROM job j WHERE j.tenant = t.tenant AND j.seq > t.noted ORDER BY j.seq LIMIT 1 OFFSET :jobs - 1)
LIMIT :limit;

-- name: noted_to
SELECT coalesce((SELECT last_seq FROM job_block WHERE tenant = :tenant ORDER BY first_seq DESC LIMIT 1), 0);

-- name: next_jobs
SELECT j.seq, b.created_at, b.type, j.tags FROM job j CROSS JOIN job_body b ON b.tenant = j.tenant AND b.seq = j.seq
WHERE j.tenant = :tenant AND j.seq > :after ORDER BY j.seq LIMIT :jobs;

-- name: insert_block
INSERT INTO job_block (tenant, first_seq, last_seq, earliest, latest) VALUES (?, ?, ?, ?, ?);

-- name: insert_term
INSERT INTO job_block_term (tenant, kind, word, first_seq) VALUES (?, ?, ?, ?);

-- name: drop_emptied
-- Delete empty job blocks that overlap the range of a prune.
DELETE FROM job_block WHERE tenant = :tenant AND last_seq >= :first AND first_seq <= :last
  AND first_seq >= coalesce((SELECT s.first_seq FROM job_block s WHERE s.tenant = :tenant AND s.first_seq <= :first ORDER BY s.first_seq DESC LIMIT 1), 0)
  AND NOT EXISTS (SELECT 1 FROM job j WHERE j.tenant = job_block.tenant AND j.seq BETWEEN job_block.first_seq AND job_block.last_seq);

-- name: between
-- The range of seqs that contains all blocks of a creation time range.
SELECT min(first_seq), max(last_seq) FROM job_block
WHERE tenant = :tenant AND (:created_after IS NULL OR latest >= :created_after) AND (:created_before IS NULL OR earliest < :created_before);
