-- name: list
SELECT s.name, s.chunks, s.bytes, s.updated_at FROM interlock.job_stream s
WHERE s.tenant = :tenant AND s.job_id = :job_id ORDER BY s.name;

-- name: chunks
SELECT c.chunk_no, c.attempt, c.fence, c.at, c.is_text, c.data FROM interlock.stream_chunk c
WHERE c.tenant = :tenant AND c.job_id = :job_id AND c.name = :name AND c.chunk_no > :after ORDER BY c.chunk_no LIMIT :limit;

-- name: grow
INSERT INTO interlock.job_stream (tenant, job_id, name, chunks, bytes, updated_at)
VALUES (:tenant, :job_id, :name, :chunks, :bytes, :now)
ON CONFLICT (tenant, job_id, name) DO UPDATE SET chunks = job_stream.chunks + excluded.chunks,
  bytes = job_stream.bytes + excluded.bytes, updated_at = excluded.updated_at;
