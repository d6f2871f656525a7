-- name: steps
-- The steps of each job after a number, at most :limit per job.
select s.* from unnest(:ids::uuid[]) u(id) cross join lateral (
  select {step} from interlock.job_step s where s.tenant = :tenant and s.job_id = u.id and s.seq > :after::bigint
  order by s.seq limit :limit) s;

-- name: feed
select * from interlock.feed(:tenant, :epoch, :commit_seq, :job_id, :seq, :limit);

-- name: feed_end
-- The lower bound of every future commit_seq, and its epoch.
select value, pg_snapshot_xmin(pg_current_snapshot())::text::bigint from interlock.epoch;

-- name: last_redrives
-- The newest redrive of each job that has one.
select u.id, k.id as again, k.seq from unnest(:ids::uuid[]) as u(id) cross join lateral (
  select j.id, j.seq from interlock.job j where j.tenant = :tenant and j.redrive_of = u.id order by j.seq desc limit 1) k;

-- name: redrives
-- The jobs that redrive a job, newest first.
select k.id from interlock.job k where k.tenant = :tenant and k.redrive_of = :id order by k.seq desc limit :limit;

-- name: retrying_after
-- Jobs in status retry whose error contains a text, newest first.
select s.job_id from interlock.unsuccessful_job s where s.tenant = :tenant and s.status = 'retry'
  and exists (select from interlock.job j where j.tenant = :tenant and j.id = s.job_id and position(:text in j.error) > 0)
order by s.seq desc limit :limit;
