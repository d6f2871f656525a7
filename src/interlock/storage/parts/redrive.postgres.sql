-- name: target
:target::uuid;

-- name: copy
:copy::uuid;

-- name: body
interlock.job;
