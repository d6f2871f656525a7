-- name: by_type
WITH {used}, keyed AS (SELECT u.id, u.amounts, u.type AS one, '' AS two FROM used u), {sums} SELECT s.* FROM sums s;

-- name: by_agent
WITH {used}, keyed AS (SELECT u.id, u.amounts, u.agent_kind AS one, u.agent_id AS two FROM used u), {sums} SELECT s.* FROM sums s;

-- name: by_day
WITH {used}, keyed AS (SELECT u.id, u.amounts, {day} AS one, '' AS two FROM used u), {sums} SELECT s.* FROM sums s;

-- name: by_tree
WITH {used}, keyed AS (SELECT u.id, u.amounts, coalesce(u.parent_id, u.id) AS one,
  CASE WHEN u.parent_id IS NOT NULL THEN 'child' ELSE '' END AS two FROM used u), {sums} SELECT s.* FROM sums s;
