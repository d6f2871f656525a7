-- Partitions of history are a matter of PostgreSQL: a file has none.
SELECT 1;
