-- name: append
INSERT INTO stream_chunk (tenant, job_id, name, chunk_no, attempt, fence, at, is_text, data)
SELECT :tenant, :job_id, :name, :first + d.key, :attempt, :fence, :now, t.value, unhex(d.value)
FROM json_each(:data) d CROSS JOIN json_each(:texts) t ON t.key = d.key;
