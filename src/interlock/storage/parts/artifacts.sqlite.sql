-- name: lock_holders
SELECT j.id, j.fence, j.worker FROM json_each(:ids) i CROSS JOIN job j ON j.tenant = :tenant AND j.id = i.value
WHERE j.worker IS NOT NULL;

-- name: named
SELECT {artifact} FROM json_each(:ids) i CROSS JOIN json_each(:names) n ON n.key = i.key
CROSS JOIN artifact a ON a.tenant = :tenant AND a.job_id = i.value AND a.name = n.value;

-- name: leave
INSERT INTO artifact_orphan (tenant, object_key, collect_at) SELECT :tenant, value, :collect_at FROM json_each(:keys) WHERE TRUE
ON CONFLICT DO NOTHING;

-- name: due
SELECT tenant, object_key FROM artifact_orphan WHERE collect_at <= :now ORDER BY collect_at LIMIT :limit;

-- name: condemn
-- The later collect_at keeps other processes from collecting the same objects, and schedules a retry.
UPDATE artifact_orphan SET condemned = 1, collect_at = :again_at
WHERE tenant = :tenant AND object_key {in keys} AND collect_at <= :now RETURNING object_key;
