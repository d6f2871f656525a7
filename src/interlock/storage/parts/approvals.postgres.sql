-- name: approvals
interlock.approval_view;

-- name: votes
a.votes;

-- name: payloads
select j.id, j.payload from interlock.job j where j.tenant = :tenant and j.id = any(:ids);

-- name: open
insert into interlock.approval (tenant, id, job_id, fence, status, prompt, details, risk, schema, digest, required, on_deny, opened_by,
  opened_at, expires_at, kind, name, occurrence, deadline)
values (:tenant, :id, :job_id, :fence, 'open', :prompt, :details, :risk, :schema, :digest, :required, :on_deny, :opened_by,
  :now, :expires_at, :kind, :name, coalesce(:occurrence, 1 + (select count(*)::integer from interlock.approval a
    where a.tenant = :tenant and a.job_id = :job_id and a.kind = :kind and a.name is not distinct from :name)),
  (select j.deadline from interlock.job j where j.tenant = :tenant and j.id = :job_id));

-- name: of_token
select tenant, approval_id from interlock.approval_of_token(:sha256);

-- name: due
select tenant, job_id from interlock.due_approvals(:now, :limit);
