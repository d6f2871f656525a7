-- name: begin
-- A lost response repeats the statement with the same ID.
INSERT INTO interlock.session (tenant, id, hash, actor, roles, authenticated_at, created_at, expires_at)
VALUES (:tenant, :id, :hash, :actor, :roles, :authenticated_at, :now, :expires_at)
ON CONFLICT DO NOTHING;

-- name: know
INSERT INTO interlock.person (tenant, actor, name, email, signed_in_at) VALUES (:tenant, :actor, :name, :email, :now)
ON CONFLICT (tenant, actor) DO UPDATE SET name = excluded.name, email = excluded.email, signed_in_at = excluded.signed_in_at;

-- name: get
SELECT {columns} FROM interlock.session s WHERE s.tenant = :tenant AND s.id = :id;

-- name: page
SELECT {columns} FROM interlock.session s
WHERE s.tenant = :tenant AND s.roles IS NOT NULL AND s.expires_at > :now AND ((s.created_at, s.id) <
    (SELECT b.created_at, b.id FROM interlock.session b WHERE b.tenant = :tenant AND b.id = :before) OR :before IS NULL)
ORDER BY s.created_at DESC, s.id DESC LIMIT :limit;

-- name: end
DELETE FROM interlock.session WHERE tenant = :tenant AND id = :id RETURNING actor, roles;

-- name: end_all
DELETE FROM interlock.session WHERE tenant = :tenant AND actor = :of_actor;

-- name: people
SELECT actor, name, email, signed_in_at FROM interlock.person WHERE tenant = :tenant
ORDER BY signed_in_at DESC, actor LIMIT :limit;

-- name: forget
DELETE FROM interlock.session WHERE tenant = :tenant AND id {in ids} AND expires_at <= :now;
