-- name: list
SELECT {message} FROM job_message m
WHERE m.tenant = :tenant AND m.job_id = :job_id AND m.seq > :after AND (:name IS NULL OR m.name = :name)
  AND (:topic IS NULL OR m.topic = :topic) ORDER BY m.seq LIMIT :limit;

-- name: relative
-- A job of the same tree that the actor created, or that the worker or one of its instances holds.
WITH RECURSIVE up(id, parent_id, depth) AS (
  SELECT b.id, b.parent_id, 0 FROM job_body b WHERE b.tenant = :tenant AND b.id = :job_id
  UNION ALL
  SELECT b.id, b.parent_id, up.depth + 1 FROM up JOIN job_body b ON b.tenant = :tenant AND b.id = up.parent_id WHERE up.depth < 1000
),
tree(id, seq, created_by) AS (
  SELECT * FROM (SELECT b.id, b.seq, b.created_by FROM up JOIN job_body b ON b.tenant = :tenant AND b.id = up.id ORDER BY up.depth DESC LIMIT 1)
  UNION ALL
  SELECT b.id, b.seq, b.created_by FROM tree JOIN job_body b ON b.tenant = :tenant AND b.parent_id = tree.id
)
SELECT t.id FROM (SELECT * FROM tree LIMIT :limit) t JOIN job j ON j.tenant = :tenant AND j.seq = t.seq
WHERE t.created_by = :actor OR j.worker = :worker OR substr(j.worker, 1, length(:instances)) = :instances LIMIT 1;

-- name: lock_topic
-- Writers of SQLite exclude each other already.
SELECT 1;

-- name: lock_published
SELECT t.delivered, t.reached FROM topic_message t WHERE t.tenant = :tenant AND t.topic = :topic AND t.id = :id;

-- name: share_topic
SELECT 1;
