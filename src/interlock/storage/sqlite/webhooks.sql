-- name: any_subscriber
-- Whether a tenant has subscriptions, and whether any of its jobs has its own webhook.
SELECT EXISTS (SELECT 1 FROM subscription WHERE tenant = :tenant AND ended_at IS NULL),
  EXISTS (SELECT 1 FROM job_body INDEXED BY job_webhook WHERE tenant = :tenant AND webhook IS NOT NULL);

-- name: deliver
INSERT INTO transition_to_deliver VALUES (?, ?, ?, ?);
