-- On PostgreSQL this tells databases apart that share the tenants of one service; a file is always the only one.
SELECT 1;
