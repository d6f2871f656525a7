"""Durable homes for jobs: one contract, two engines."""
