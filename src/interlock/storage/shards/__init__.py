"""Several PostgreSQL databases behind the contract of one store."""
