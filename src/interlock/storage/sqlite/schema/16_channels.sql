-- Notification channels. The deliveries of a channel are those of its subscription.

-- address is the public part of the destination as JSON, credentials the secret part.
CREATE TABLE channel (
  tenant               TEXT NOT NULL,
  name                 TEXT NOT NULL,
  subscription_id      TEXT NOT NULL,
  kind                 TEXT NOT NULL CHECK (kind IN ('slack', 'teams', 'email', 'webhook')),
  address              TEXT NOT NULL,
  credentials          TEXT NOT NULL,
  events               TEXT NOT NULL,
  types                TEXT,
  tags                 TEXT,
  min_risk             TEXT CHECK (min_risk IN ('low', 'medium', 'high', 'critical')),
  min_interval_seconds REAL NOT NULL CHECK (min_interval_seconds >= 0),
  created_at           INTEGER NOT NULL,
  created_by           TEXT NOT NULL,
  updated_at           INTEGER NOT NULL,
  PRIMARY KEY (tenant, name)
) WITHOUT ROWID;
