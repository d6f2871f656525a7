-- name: of_job
h.job_id = j.id;

-- name: position
j.id;

-- name: chains
select c.*, c.job_id from interlock.chains(:tenant, :after, :jobs) c;

-- name: kept
-- The digests of the current values of some jobs.
select j.id, interlock.digest(j.payload), interlock.options_digest(j), interlock.digest(j.result), interlock.digest(j.result_summary),
  interlock.digest(j.usage), interlock.digest(j.error), interlock.digest(interlock.field(c.seq) || interlock.field(c.data)), c.at
from interlock.job j left join interlock.job_checkpoint c on c.tenant = j.tenant and c.job_id = j.id
where j.tenant = :tenant and j.id = any(:ids);

-- name: tenants
select tenant from interlock.tenants() tenant;
