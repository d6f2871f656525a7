"""Durable runs for agent frameworks: their model requests and tool calls become steps of a job.

Each module needs its framework, which an extra of the same name installs.
"""
