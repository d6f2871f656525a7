-- name: get
SELECT {columns} FROM {approvals} a WHERE a.tenant = :tenant AND a.id {in ids};

-- name: lock
SELECT a.id FROM interlock.approval a WHERE a.tenant = :tenant AND a.id {in ids} ORDER BY a.id {for update};

-- name: find
-- The optional status cannot use an index, so open approvals, the common case, have their own statement.
SELECT {columns} FROM {approvals} a
WHERE a.tenant = :tenant AND (a.opened_at, a.id) < (:at, :id) AND (a.status = :status OR :status IS NULL)
ORDER BY a.opened_at DESC, a.id DESC LIMIT :limit;

-- name: find_urgent
SELECT {columns} FROM {approvals} a {by approval_due}
WHERE a.tenant = :tenant AND a.status = 'open' AND (a.expires_at, a.id) > (:at, :id)
ORDER BY a.expires_at, a.id LIMIT :limit;

-- name: find_open
SELECT {columns} FROM {approvals} a {by approval_open}
WHERE a.tenant = :tenant AND a.status = 'open' AND (a.opened_at, a.id) < (:at, :id)
ORDER BY a.opened_at DESC, a.id DESC LIMIT :limit;

-- name: find_of_job
SELECT {columns} FROM {approvals} a {by approval_of_lease}
WHERE a.tenant = :tenant AND a.job_id = :job_id AND (a.fence = :fence OR :fence IS NULL)
  AND (a.status = :status OR :status IS NULL) AND (a.opened_at, a.id) < (:at, :id)
ORDER BY a.opened_at DESC, a.id DESC LIMIT :limit;

-- name: decisions
-- The decided approvals of each job, oldest first.
SELECT {columns} FROM {approvals} a {by approval_of_lease}
WHERE a.tenant = :tenant AND a.job_id {in ids} AND a.status IN ('approved', 'denied') ORDER BY a.fence;

-- name: vote
INSERT INTO interlock.approval_vote (tenant, approval_id, job_id, voter, decision, comment, at)
VALUES (:tenant, :id, :job_id, :voter, :decision, :comment, :at);

-- name: close
UPDATE interlock.approval SET status = :status, closed_by = :by, closed_at = :at, comment = :comment, data = :data
WHERE tenant = :tenant AND id = :id AND status = 'open';

-- name: create_link
UPDATE interlock.approval SET token_sha256 = :sha256, link_created_by = :actor, link_created_at = :now
WHERE tenant = :tenant AND id = :id AND status = 'open';
