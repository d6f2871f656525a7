-- name: payloads
SELECT j.id, b.payload FROM json_each(:ids) i CROSS JOIN job j ON j.tenant = :tenant AND j.id = i.value
CROSS JOIN job_body b ON b.tenant = j.tenant AND b.seq = j.seq;

-- name: open
INSERT INTO approval (tenant, id, job_id, fence, status, prompt, details, risk, schema, digest, required, on_deny, opened_by,
  opened_at, expires_at, name, occurrence)
VALUES (?1, ?2, ?3, ?4, 'open', ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15,
  coalesce(?16, 1 + (SELECT count(*) FROM approval a WHERE a.tenant = ?1 AND a.job_id = ?3 AND a.name IS ?15)));

-- name: approvals
SELECT {columns} FROM json_each(:ids) i CROSS JOIN approval a ON a.tenant = :tenant AND a.id = i.value;

-- name: find
-- The optional status condition cannot use an index, so open approvals, the common case, use find_open.
SELECT {columns} FROM approval a
WHERE a.tenant = :tenant AND (a.opened_at, a.id) < (:at, :id) AND (:status IS NULL OR a.status = :status)
ORDER BY a.opened_at DESC, a.id DESC LIMIT :limit;

-- name: find_urgent
SELECT {columns} FROM approval a INDEXED BY approval_due
WHERE a.tenant = :tenant AND a.status = 'open' AND (a.expires_at, a.id) > (:at, :id)
ORDER BY a.expires_at, a.id LIMIT :limit;

-- name: find_open
SELECT {columns} FROM approval a INDEXED BY approval_open
WHERE a.tenant = :tenant AND a.status = 'open' AND (a.opened_at, a.id) < (:at, :id)
ORDER BY a.opened_at DESC, a.id DESC LIMIT :limit;

-- name: find_of_job
SELECT {columns} FROM approval a INDEXED BY approval_of_lease
WHERE a.tenant = :tenant AND a.job_id = :job_id AND (:fence IS NULL OR a.fence = :fence) AND (:status IS NULL OR a.status = :status)
  AND (a.opened_at, a.id) < (:at, :id)
ORDER BY a.opened_at DESC, a.id DESC LIMIT :limit;

-- name: of_token
SELECT a.tenant, a.id FROM approval a INDEXED BY approval_token WHERE a.token_sha256 = :sha256;

-- name: decisions
-- The decided approvals of each job, oldest first.
SELECT {columns} FROM json_each(:ids) i CROSS JOIN approval a INDEXED BY approval_of_lease
ON a.tenant = :tenant AND a.job_id = i.value AND a.status IN ('approved', 'denied')
ORDER BY a.fence;

-- name: due
WITH RECURSIVE t (tenant) AS (
  SELECT min(tenant) FROM approval INDEXED BY approval_due WHERE status = 'open'
  UNION ALL
  SELECT (SELECT n.tenant FROM approval n INDEXED BY approval_due WHERE n.tenant > t.tenant AND n.status = 'open' ORDER BY n.tenant LIMIT 1)
  FROM t WHERE t.tenant IS NOT NULL
)
SELECT a.tenant, a.job_id FROM t CROSS JOIN approval a INDEXED BY approval_due ON a.tenant = t.tenant
WHERE a.status = 'open' AND a.expires_at <= :now LIMIT :limit;

-- name: vote
INSERT INTO approval_vote (tenant, approval_id, voter, job_id, decision, comment, at) VALUES (?, ?, ?, ?, ?, ?, ?);

-- name: close
UPDATE approval SET status = ?, closed_by = ?, closed_at = ?, comment = ?, data = ? WHERE tenant = ? AND id = ? AND status = 'open';

-- name: create_link
UPDATE approval SET token_sha256 = ?, link_created_by = ?, link_created_at = ? WHERE tenant = ? AND id = ? AND status = 'open';
