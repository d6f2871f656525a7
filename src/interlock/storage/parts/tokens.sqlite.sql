-- name: with_hash
SELECT {columns}, k.hash, :now FROM token k WHERE k.hash = :hash;

-- name: old
-- Tokens that ended before a time. The expression must match the index token_end.
SELECT tenant, id FROM token
WHERE coalesce(revoked_at, expires_at) IS NOT NULL
  AND min(coalesce(revoked_at, expires_at), coalesce(expires_at, revoked_at)) < :before
ORDER BY min(coalesce(revoked_at, expires_at), coalesce(expires_at, revoked_at)) LIMIT :limit;

-- name: forget
DELETE FROM token WHERE tenant = :tenant AND id {in ids}
  AND min(coalesce(revoked_at, expires_at), coalesce(expires_at, revoked_at)) < :before
RETURNING id;

-- name: touch
UPDATE token SET last_used_at = :now
WHERE tenant = :tenant AND id {in ids} AND (last_used_at IS NULL OR last_used_at <= :before);
