-- name: holders
SELECT j.id, j.fence, j.worker FROM json_each(:ids) i CROSS JOIN job j ON j.tenant = :tenant AND j.id = i.value;

-- name: used
SELECT coalesce((SELECT bytes FROM artifact_usage WHERE tenant = :tenant), 0);

-- name: use
INSERT INTO artifact_usage (tenant, bytes) VALUES (:tenant, max(:growth, 0))
ON CONFLICT DO UPDATE SET bytes = bytes + :growth;

-- name: orphan
INSERT INTO artifact_orphan (tenant, object_key, collect_at) VALUES (?, ?, ?) ON CONFLICT DO NOTHING;

-- name: safe
-- Keys whose objects can still become artifacts.
SELECT object_key FROM artifact_orphan
WHERE tenant = :tenant AND object_key IN (SELECT value FROM json_each(:keys)) AND NOT condemned;

-- name: adopted
DELETE FROM artifact_orphan WHERE tenant = ? AND object_key = ?;

-- name: abandoned
UPDATE artifact_orphan SET collect_at = ? WHERE tenant = ? AND object_key = ?;

-- name: named
SELECT {artifact} FROM json_each(:ordinals) p CROSS JOIN artifact a
  ON a.tenant = :tenant AND a.job_id = p.value ->> 0 AND a.name = p.value ->> 1;

-- name: make_room
DELETE FROM artifact WHERE tenant = ? AND job_id = ? AND name = ?;

-- name: show
INSERT INTO artifact (tenant, job_id, fence, worker, id, name, size, sha256, content_type, object_key, url, created_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: one
SELECT {artifact} FROM artifact a WHERE a.tenant = :tenant AND a.job_id = :job_id AND a.id = :id;

-- name: home
SELECT job_id FROM artifact WHERE tenant = :tenant AND id = :id;

-- name: newest
SELECT {artifact} FROM artifact a
WHERE a.tenant = :tenant AND a.job_id = :job_id AND (a.created_at, a.id) < (:before_at, :before_id)
ORDER BY a.created_at DESC, a.id DESC LIMIT :limit;

-- name: forget
DELETE FROM artifact WHERE tenant = :tenant AND job_id IN (SELECT value FROM json_each(:job_ids)) RETURNING object_key, size;

-- name: due
SELECT tenant, object_key FROM artifact_orphan WHERE collect_at <= :now ORDER BY collect_at LIMIT :limit;

-- name: condemn
-- The later collect_at keeps other processes from collecting the same objects, and schedules a retry.
UPDATE artifact_orphan SET condemned = 1, collect_at = :again_at
WHERE tenant = :tenant AND object_key IN (SELECT value FROM json_each(:keys)) AND collect_at <= :now RETURNING object_key;

-- name: drop
DELETE FROM artifact_orphan
WHERE tenant = :tenant AND object_key IN (SELECT value FROM json_each(:keys)) AND condemned RETURNING 1;
