-- name: append
insert into interlock.stream_chunk (tenant, job_id, name, chunk_no, attempt, fence, at, is_text, data)
select :tenant::text, :job_id::uuid, :name::text, :first::bigint + u.ordinal - 1, :attempt::integer, :fence::bigint, :now, u.is_text,
  decode(u.data, 'hex')
from unnest(:data::text[], :texts::boolean[]) with ordinality as u(data, is_text, ordinal);
