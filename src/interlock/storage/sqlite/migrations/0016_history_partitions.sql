-- PostgreSQL only: SQLite has no history partitions.
SELECT 1;
