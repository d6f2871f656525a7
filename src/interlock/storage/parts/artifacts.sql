-- name: known
SELECT j.id FROM interlock.job j WHERE j.tenant = :tenant AND j.id {in ids};

-- name: total
SELECT bytes FROM interlock.artifact_usage WHERE tenant = :tenant;

-- name: used
SELECT bytes FROM interlock.artifact_usage WHERE tenant = :tenant {for update};

-- name: start_usage
INSERT INTO interlock.artifact_usage (tenant, bytes) VALUES (:tenant, 0) ON CONFLICT DO NOTHING;

-- name: use
UPDATE interlock.artifact_usage SET bytes = bytes + :growth WHERE tenant = :tenant AND :growth <> 0;

-- name: safe
-- Keys whose objects can still become artifacts.
SELECT object_key FROM interlock.artifact_orphan
WHERE tenant = :tenant AND object_key {in keys} AND NOT condemned ORDER BY object_key {for update};

-- name: adopt
DELETE FROM interlock.artifact_orphan WHERE tenant = :tenant AND object_key {in keys};

-- name: abandon
UPDATE interlock.artifact_orphan SET collect_at = :now WHERE tenant = :tenant AND object_key {in keys};

-- name: make_room
DELETE FROM interlock.artifact WHERE tenant = :tenant AND job_id = :job_id AND name = :name;

-- name: publish
INSERT INTO interlock.artifact (tenant, job_id, fence, worker, id, name, size, sha256, content_type, object_key, url, created_at)
VALUES (:tenant, :job_id, :fence, :worker, :id, :name, :size, :sha256, :content_type, :key, :url, :now);

-- name: get
SELECT {artifact} FROM interlock.artifact a WHERE a.tenant = :tenant AND a.job_id = :job_id AND a.id = :id;

-- name: job_of
SELECT a.job_id FROM interlock.artifact a WHERE a.tenant = :tenant AND a.id = :id;

-- name: page
SELECT {artifact} FROM interlock.artifact a
WHERE a.tenant = :tenant AND a.job_id = :job_id AND (a.created_at, a.id) < (:at, :id)
ORDER BY a.created_at DESC, a.id DESC LIMIT :limit;

-- name: forget
DELETE FROM interlock.artifact WHERE tenant = :tenant AND job_id {in ids} RETURNING object_key, size;

-- name: keep_shared
-- A redrive shares the objects of large results with its source: they are kept until no artifact refers to them.
DELETE FROM interlock.artifact_orphan WHERE tenant = :tenant AND object_key {in keys} AND NOT condemned
AND EXISTS (SELECT 1 FROM interlock.artifact a WHERE a.tenant = :tenant AND a.object_key = artifact_orphan.object_key);

-- name: drop
DELETE FROM interlock.artifact_orphan WHERE tenant = :tenant AND object_key {in keys} AND condemned;
