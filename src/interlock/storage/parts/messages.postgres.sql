-- name: list
select {message} from interlock.job_message m
where m.tenant = :tenant and m.job_id = :job_id and m.seq > :after and (:name::text is null or m.name = :name)
  and (:topic::text is null or m.topic = :topic) order by m.seq limit :limit;

-- name: relative
-- A job of the same tree that the actor created, or that the worker or one of its instances holds.
with recursive up(id, parent_id, depth) as (
  select j.id, j.parent_id, 0 from interlock.job j where j.tenant = :tenant and j.id = :job_id
  union all
  select j.id, j.parent_id, up.depth + 1 from up join interlock.job j on j.tenant = :tenant and j.id = up.parent_id where up.depth < 1000
),
tree(id, created_by, worker) as (
  (select j.id, j.created_by, j.worker from up join interlock.job j on j.tenant = :tenant and j.id = up.id order by up.depth desc limit 1)
  union all
  select j.id, j.created_by, j.worker from tree join interlock.job j on j.tenant = :tenant and j.parent_id = tree.id
)
select t.id from (select * from tree limit :limit) t
where t.created_by = :actor::text or t.worker = :worker::text or starts_with(t.worker, :instances::text) limit 1;

-- name: lock_topic
-- A job that begins to wait shares the lock: either it sees the message, or the publisher sees that it waits.
select pg_advisory_xact_lock(hashtextextended(:tenant::text || ' topic ' || :topic::text, 0));

-- name: lock_published
select t.delivered, t.reached from interlock.topic_message t where t.tenant = :tenant and t.topic = :topic and t.id = :id for update;

-- name: share_topic
select pg_advisory_xact_lock_shared(hashtextextended(:tenant::text || ' topic ' || :topic::text, 0));
