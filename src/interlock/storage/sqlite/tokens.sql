-- name: create
-- Keep the existing token if its ID or key is already in use.
INSERT INTO token (tenant, id, hash, description, roles, worker_id, types, repositories, capabilities, key, created_at, created_by,
  expires_at)
VALUES (:tenant, :id, :hash, :description, :roles, :worker_id, :types, :repositories, :capabilities, :key, :now, :created_by,
  :expires_at)
ON CONFLICT DO NOTHING;

-- name: with_key
SELECT id FROM token WHERE tenant = :tenant AND key = :key;

-- name: with_hash
SELECT {columns}, hash FROM token WHERE hash = :hash;

-- name: get
SELECT {columns} FROM token WHERE tenant = :tenant AND id = :id;

-- name: list
SELECT {columns} FROM token
WHERE tenant = :tenant
  AND (:before IS NULL OR (created_at, id) < (SELECT created_at, id FROM token WHERE tenant = :tenant AND id = :before))
ORDER BY created_at DESC, id DESC LIMIT :limit;

-- name: revoke
UPDATE token SET revoked_at = :now, revoked_by = :actor WHERE tenant = :tenant AND id = :id AND revoked_at IS NULL;

-- name: forget
-- The expression must match the index token_end.
DELETE FROM token WHERE (tenant, id) IN (
  SELECT tenant, id FROM token
  WHERE coalesce(revoked_at, expires_at) IS NOT NULL
    AND min(coalesce(revoked_at, expires_at), coalesce(expires_at, revoked_at)) < :before
  ORDER BY min(coalesce(revoked_at, expires_at), coalesce(expires_at, revoked_at)) LIMIT :limit);

-- name: touch
UPDATE token SET last_used_at = :now
WHERE tenant = :tenant AND id = :id AND (last_used_at IS NULL OR last_used_at <= :before);
