-- PostgreSQL only: identifies the shards of one service. A SQLite store has no shards.
SELECT 1;
