-- name: approvals
approval;

-- name: votes
(SELECT json_group_array(json_array(x.voter, x.decision, x.comment, x.at))
  FROM (SELECT * FROM approval_vote v WHERE v.tenant = a.tenant AND v.approval_id = a.id ORDER BY v.at, v.voter) x);

-- name: payloads
SELECT j.id, b.payload FROM json_each(:ids) i CROSS JOIN job j ON j.tenant = :tenant AND j.id = i.value
CROSS JOIN job_body b ON b.tenant = j.tenant AND b.seq = j.seq;

-- name: open
INSERT INTO approval (tenant, id, job_id, fence, status, prompt, details, risk, schema, digest, required, on_deny, opened_by,
  opened_at, expires_at, kind, name, occurrence)
VALUES (:tenant, :id, :job_id, :fence, 'open', :prompt, :details, :risk, :schema, :digest, :required, :on_deny, :opened_by,
  :now, :expires_at, :kind, :name, coalesce(:occurrence,
    1 + (SELECT count(*) FROM approval a WHERE a.tenant = :tenant AND a.job_id = :job_id AND a.kind = :kind AND a.name IS :name)));

-- name: of_token
SELECT a.tenant, a.id FROM approval a INDEXED BY approval_token WHERE a.token_sha256 = :sha256;

-- name: due
-- Skip from one tenant with an open approval to the next: tenants without any cost nothing.
WITH RECURSIVE t (tenant) AS (
  SELECT min(tenant) FROM approval INDEXED BY approval_due WHERE status = 'open'
  UNION ALL
  SELECT (SELECT n.tenant FROM approval n INDEXED BY approval_due WHERE n.tenant > t.tenant AND n.status = 'open' ORDER BY n.tenant LIMIT 1)
  FROM t WHERE t.tenant IS NOT NULL
)
SELECT a.tenant, a.job_id FROM t CROSS JOIN approval a INDEXED BY approval_due ON a.tenant = t.tenant
WHERE a.status = 'open' AND a.expires_at <= :now LIMIT :limit;
