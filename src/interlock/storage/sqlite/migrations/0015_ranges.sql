-- A worker that takes any repository, or any affinity key, finds its jobs in one range however many repositories or keys there are:
-- a job names its route without its repository, if it has one, and without its affinity key, if it has one.

ALTER TABLE job ADD COLUMN across_repositories INTEGER;
ALTER TABLE job ADD COLUMN across_keys INTEGER;
CREATE INDEX job_ready_across_repositories ON job (tenant, across_repositories, run_at, seq)
  WHERE across_repositories IS NOT NULL AND status IN ('queued', 'retry') AND awaiting = 0 AND blocked = 0;
CREATE INDEX job_ready_across_keys ON job (tenant, across_keys, run_at, seq)
  WHERE across_keys IS NOT NULL AND status IN ('queued', 'retry') AND awaiting = 0 AND blocked = 0;
CREATE INDEX eligibility_key_bases ON eligibility_key (tenant, type) WHERE no = base;
