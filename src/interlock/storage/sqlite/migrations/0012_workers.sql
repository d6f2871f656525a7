-- PostgreSQL only: lets the sweep find stale workers. On SQLite every connection sees all tenants.
SELECT 1;
