-- name: create
-- Keep the existing token if its ID or key is already in use.
INSERT INTO interlock.token (tenant, id, hash, description, roles, worker_id, types, repositories, capabilities, key, created_at,
  created_by, expires_at)
VALUES (:tenant, :id, :hash, :description, :roles, :worker_id, :types, :repositories, :capabilities, :key, :now, :created_by,
  :expires_at)
ON CONFLICT DO NOTHING;

-- name: with_key
SELECT id FROM interlock.token WHERE tenant = :tenant AND key = :key;

-- name: get
SELECT {columns} FROM interlock.token k WHERE k.tenant = :tenant AND k.id = :id;

-- name: page
SELECT {columns} FROM interlock.token k
WHERE k.tenant = :tenant AND ((k.created_at, k.id) <
    (SELECT b.created_at, b.id FROM interlock.token b WHERE b.tenant = :tenant AND b.id = :before) OR :before IS NULL)
ORDER BY k.created_at DESC, k.id DESC LIMIT :limit;

-- name: revoke
-- The first revocation is kept.
UPDATE interlock.token SET revoked_at = :now, revoked_by = :actor
WHERE tenant = :tenant AND id = :id AND revoked_at IS NULL AND (worker_id IS NOT NULL OR NOT :of_workers);

-- name: signing_key
SELECT key FROM interlock.signing_key;
