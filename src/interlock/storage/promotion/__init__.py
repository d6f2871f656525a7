"""Promotion of a SQLite file to PostgreSQL while its jobs keep running."""
