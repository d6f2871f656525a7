-- name: with_hash
SELECT {columns}, p.name, p.email, :now FROM session s LEFT JOIN person p ON p.tenant = s.tenant AND p.actor = s.actor
WHERE s.hash = :hash;

-- name: old
SELECT tenant, id FROM session WHERE expires_at <= :now ORDER BY expires_at LIMIT :limit;
