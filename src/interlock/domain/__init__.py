"""Domain rules without I/O: statuses, decisions, backoff, policy, JSON text."""
