-- name: holder
-- The lock makes a finish, and other writes of the lease holder, wait until the transaction ends.
select j.attempt from interlock.lease l join interlock.job j on j.tenant = l.tenant and j.id = l.job_id
where l.tenant = :tenant and l.job_id = :job_id and l.fence = :fence and l.worker = :worker for update of l;

-- name: known
select j.id from interlock.job j where j.tenant = :tenant and j.id = :job_id;

-- name: lease_end
-- The history row that ended a lease.
select {history} from interlock.job_history h
where h.tenant = :tenant and h.job_id = :job_id and h.fence = :fence and h.from_status = 'running' and h.to_status <> 'running';

-- name: job_id
h.job_id;
