"""The rules, without any input or output: statuses, decisions, backoff, policy, text."""
