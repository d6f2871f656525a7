-- SQLite has no roles and no row-level security: whoever can open the file can read it. Tenants are kept apart by the tenant
-- that leads every key and is named in every statement.
SELECT 1;
