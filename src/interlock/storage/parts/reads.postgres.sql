-- name: history
-- The transitions of a job after a version.
select h.job_id, {transition} from interlock.job_history h
where h.tenant = :tenant and h.job_id = :id and h.version > :after order by h.version limit :limit;

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

-- name: parents
-- Those jobs that have children.
select u.id from unnest(:ids::uuid[]) as u(id)
where exists (select from interlock.job j where j.tenant = :tenant and j.parent_id = u.id);

-- name: retrying_after
-- Jobs in status retry whose error contains a text, newest first.
select s.job_id from interlock.unsuccessful_job s where s.tenant = :tenant and s.status = 'retry'
  and exists (select from interlock.job j where j.tenant = :tenant and j.id = s.job_id and position(:text in j.error) > 0)
order by s.seq desc limit :limit;

-- name: search
-- Scans all IDs: fast enough for interactive search, and needs no extra index.
select f.id from (
  select j.id, j.seq from interlock.job j
  where j.tenant = :tenant and right(j.id::text, length(:id_end::text)) = :id_end and :id_end is not null
  union select j.id, j.seq from interlock.job j where j.tenant = :tenant and j.idempotency_key = :text) f
order by f.seq desc limit :limit;

-- name: search_text
-- Reads the newest jobs and the beginning of their payloads and errors.
select n.id from (select j.id, j.seq, j.payload, j.error, j.requested_by, j.tags from interlock.job j
  where j.tenant = :tenant order by j.seq desc limit :jobs) n
where position(:json in lower(substr(n.payload, 1, :chars))) > 0 or position(:json in lower(substr(n.error, 1, :chars))) > 0
  or position(:text in lower(n.requested_by)) > 0
  or exists (select from unnest(n.tags) t(tag) where position(:text in lower(t.tag)) > 0)
order by n.seq desc limit :limit;

-- name: children_after
-- A page of the children of several jobs, by parent and arrival.
select c.* from (select distinct p.id from unnest(:parents::uuid[]) p(id) where p.id >= :parent order by p.id) p cross join lateral (
  select j.id, j.parent_id, j.seq, j.finished_at is null as live, j.cancel_requested_at is not null as asked_to_stop
  from interlock.job j
  where j.tenant = :tenant and j.parent_id = p.id and (p.id > :parent or j.seq > :seq) order by j.seq limit :limit) c
order by c.parent_id, c.seq limit :limit;
