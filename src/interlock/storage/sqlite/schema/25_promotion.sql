-- The promotion of this file to PostgreSQL, once one was begun. From promoted_at on the file refuses writes.

CREATE TABLE promotion (
  only_row    INTEGER NOT NULL PRIMARY KEY CHECK (only_row = 1),
  id          TEXT NOT NULL,
  target      TEXT NOT NULL,
  begun_at    INTEGER NOT NULL,
  promoted_at INTEGER
);

-- The keys of rows that changed during a promotion, as JSON. Its triggers exist only while one copies.
CREATE TABLE promotion_change (
  no   INTEGER NOT NULL PRIMARY KEY,
  name TEXT NOT NULL,
  key  TEXT NOT NULL
);
