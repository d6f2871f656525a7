"""The web dashboard: overview, lists, approvals and operator actions."""
