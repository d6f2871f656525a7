-- A worker that accepts any repository, or any affinity key, reads one index range for any number of them. So each job
-- stores its eligibility key without the repository and without the affinity key, if it has them.

ALTER TABLE job ADD COLUMN across_repositories INTEGER;
ALTER TABLE job ADD COLUMN across_keys INTEGER;
CREATE INDEX job_ready_across_repositories ON job (tenant, across_repositories, run_at, seq)
  WHERE across_repositories IS NOT NULL AND status IN ('queued', 'retry') AND awaiting = 0 AND blocked = 0;
CREATE INDEX job_ready_across_keys ON job (tenant, across_keys, run_at, seq)
  WHERE across_keys IS NOT NULL AND status IN ('queued', 'retry') AND awaiting = 0 AND blocked = 0;
CREATE INDEX eligibility_key_bases ON eligibility_key (tenant, type) WHERE no = base;
