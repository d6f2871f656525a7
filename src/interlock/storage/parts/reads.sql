-- name: events
select {event} from interlock.job_event e
where e.tenant = :tenant and e.job_id = :id and e.seq > cast(:after as bigint) and e.received_at > :since
order by e.seq limit :limit;

-- name: has_ended
select j.finished_at is not null from interlock.job j where j.tenant = :tenant and j.id = :id;

-- name: prunes
select {prune} from interlock.prune p where p.tenant = :tenant order by p.at desc, p.id desc limit :limit;

-- name: lease_states
select j.id, j.fence, case when j.status = 'running' then j.worker end, j.cancel_requested_at is not null
from interlock.job j where j.tenant = :tenant and j.id {in ids};
