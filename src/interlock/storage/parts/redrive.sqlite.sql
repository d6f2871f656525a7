-- name: target
:target;

-- name: copy
:copy;

-- name: body
job_body;
