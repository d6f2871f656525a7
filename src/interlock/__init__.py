"""Interlock: a durable job queue and control plane for AI agents."""

__version__ = "0.1.0"
