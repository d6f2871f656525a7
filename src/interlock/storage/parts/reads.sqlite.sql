-- name: steps
-- The steps of each job after a number, at most :limit per job.
SELECT {step} FROM json_each(:ids) i CROSS JOIN job_step s ON s.tenant = :tenant AND s.job_id = i.value
WHERE s.seq IN (SELECT n.seq FROM job_step n WHERE n.tenant = :tenant AND n.job_id = i.value AND n.seq > :after
  ORDER BY n.seq LIMIT :limit);

-- name: feed
SELECT e.epoch, e.commit_seq, {event} FROM job_event e INDEXED BY job_event_feed
WHERE e.tenant = :tenant AND (e.epoch, e.commit_seq, e.job_id, e.seq) > (:epoch, :commit_seq, :job_id, :seq)
ORDER BY e.epoch, e.commit_seq, e.job_id, e.seq LIMIT :limit;

-- name: feed_end
SELECT (SELECT value FROM epoch), coalesce((SELECT last FROM event_commit_seq WHERE tenant = :tenant), 0) + 1;

-- name: last_redrives
-- The newest redrive of each job that has one. With max(), the other columns are those of its row.
SELECT b.redrive_of, b.id, max(b.seq) FROM json_each(:ids) i CROSS JOIN job_body b INDEXED BY job_redrive
WHERE b.tenant = :tenant AND b.redrive_of = i.value AND b.redrive_of IS NOT NULL GROUP BY b.redrive_of;

-- name: redrives
-- The jobs that redrive a job, newest first.
SELECT b.id FROM job_body b INDEXED BY job_redrive
WHERE b.tenant = :tenant AND b.redrive_of = :id AND b.redrive_of IS NOT NULL ORDER BY b.seq DESC LIMIT :limit;

-- name: retrying_after
-- Jobs in status retry whose error contains a text, newest first.
SELECT j.id FROM job j INDEXED BY job_unsuccessful
WHERE j.tenant = :tenant AND j.status = 'retry' AND j.status <> 'queued' AND j.status <> 'running' AND j.status <> 'succeeded'
  AND j.status <> 'waiting_for_approval' AND instr(j.error, :text)
ORDER BY j.seq DESC LIMIT :limit;
