-- On PostgreSQL this lets the sweeper find workers that nobody has seen for long; here any connection sees every tenant.
SELECT 1;
