-- SQLite has no roles and no row-level security: any user who can open the file can read it. Isolation relies on the
-- tenant column, which leads every key and is part of every statement.
SELECT 1;
