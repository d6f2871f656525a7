-- name: append
INSERT INTO audit_log (tenant, seq, actor, action, object, details, at, hash) VALUES (?, ?, ?, ?, ?, ?, ?, ?);

-- name: end
SELECT seq, hash FROM audit_log WHERE tenant = ? ORDER BY seq DESC LIMIT 1;
