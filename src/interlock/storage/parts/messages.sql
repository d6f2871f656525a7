-- name: last
SELECT m.seq FROM interlock.job_message m WHERE m.tenant = :tenant AND m.job_id = :job_id ORDER BY m.seq DESC LIMIT 1;

-- name: by_id
SELECT {message} FROM interlock.job_message m
WHERE m.tenant = :tenant AND m.job_id = :job_id AND m.id = :id AND m.topic IS NULL;

-- name: arrived
SELECT m.seq FROM interlock.job_message m
WHERE m.tenant = :tenant AND m.job_id = :job_id AND m.name = :name AND m.seq > :after LIMIT 1;

-- name: arrived_of_topic
SELECT m.seq FROM interlock.job_message m
WHERE m.tenant = :tenant AND m.job_id = :job_id AND m.topic = :topic AND m.topic IS NOT NULL AND m.seq > :after LIMIT 1;

-- name: add
INSERT INTO interlock.job_message (tenant, job_id, seq, id, name, topic, payload, sender, at)
VALUES (:tenant, :job_id, :seq, :id, :name, :topic, :payload, :sender, :at);

-- name: waits
SELECT w.after_seq FROM interlock.message_wait w
WHERE w.tenant = :tenant AND w.job_id = :job_id AND w.fence = :fence AND w.name = :name AND w.after_seq < :seq;

-- name: wait
INSERT INTO interlock.message_wait (tenant, job_id, fence, name, topic, after_seq)
VALUES (:tenant, :job_id, :fence, :name, :topic, :after)
ON CONFLICT (tenant, job_id) DO UPDATE SET fence = excluded.fence, name = excluded.name, topic = excluded.topic,
  after_seq = excluded.after_seq;

-- name: end_wait
DELETE FROM interlock.message_wait WHERE tenant = :tenant AND job_id = :job_id;

-- name: published
SELECT t.payload, t.delivered FROM interlock.topic_message t WHERE t.tenant = :tenant AND t.topic = :topic AND t.id = :id;

-- name: publish
INSERT INTO interlock.topic_message (tenant, topic, id, payload, sender, at, expires_at)
VALUES (:tenant, :topic, :id, :payload, :sender, :now, :expires_at);

-- name: delivered
UPDATE interlock.topic_message SET delivered = :delivered, reached = :reached WHERE tenant = :tenant AND topic = :topic AND id = :id;

-- name: forget_old
DELETE FROM interlock.topic_message WHERE tenant = :tenant AND (topic, id) IN
  (SELECT t.topic, t.id FROM interlock.topic_message t WHERE t.tenant = :tenant AND t.at < :before ORDER BY t.at LIMIT 100);

-- name: retained
-- The messages of a topic that a job which begins to wait now gets, oldest first.
SELECT t.id, t.payload, t.sender FROM interlock.topic_message t
WHERE t.tenant = :tenant AND t.topic = :topic AND t.expires_at > :now
  AND NOT EXISTS
    (SELECT 1 FROM interlock.job_message m WHERE m.tenant = t.tenant AND m.job_id = :job_id AND m.id = t.id AND m.topic = t.topic)
ORDER BY t.at, t.id LIMIT :limit;

-- name: waiting_for_topic
-- Some of the jobs that wait for a topic and do not have this message yet.
SELECT w.job_id, w.fence, w.after_seq FROM interlock.message_wait w
WHERE w.tenant = :tenant AND w.topic = :topic AND w.topic IS NOT NULL AND w.job_id > :after_job
  AND NOT EXISTS
    (SELECT 1 FROM interlock.job_message m
     WHERE m.tenant = w.tenant AND m.job_id = w.job_id AND m.id = :id AND m.topic = w.topic)
ORDER BY w.job_id LIMIT :limit;
