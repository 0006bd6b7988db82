package engine

import "fmt"

// applicationID marks a database as a relay's store: "HFst".
const applicationID = 0x48467374

// maxReplaced bounds the replaced instances that are remembered for a machine.
// An agent that restarts every minute fills an hour with 60; an agent that makes
// up instances gains nothing but to forget its own.
const maxReplaced = 64

// migrations are the steps from one schema version to the next; one that was
// released is never changed.
var migrations = []string{schema1, schema2}

// Times are microseconds since 1970, 0 for "never".
var schema1 = fmt.Sprintf(`
CREATE TABLE accounts (
  id      TEXT PRIMARY KEY,
  created INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE machines (
  account  TEXT NOT NULL REFERENCES accounts ON DELETE CASCADE,
  name     TEXT NOT NULL,
  created  INTEGER NOT NULL,
  epoch    INTEGER NOT NULL DEFAULT 0,
  instance TEXT NOT NULL DEFAULT '',
  attempt  INTEGER NOT NULL DEFAULT 0,
  seen     INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (account, name)
) STRICT, WITHOUT ROWID;

-- Instances that another one replaced, and when.
CREATE TABLE replaced (
  account  TEXT NOT NULL,
  machine  TEXT NOT NULL,
  instance TEXT NOT NULL,
  since    INTEGER NOT NULL,
  PRIMARY KEY (account, machine, instance),
  FOREIGN KEY (account, machine) REFERENCES machines ON DELETE CASCADE
) STRICT, WITHOUT ROWID;

-- A trigger, so that taking an epoch and remembering whom it replaced is one
-- statement.
CREATE TRIGGER machine_replaced AFTER UPDATE OF epoch ON machines
WHEN OLD.instance <> NEW.instance
BEGIN
  DELETE FROM replaced
   WHERE account = NEW.account AND machine = NEW.name AND instance = NEW.instance;
  INSERT OR REPLACE INTO replaced (account, machine, instance, since)
  SELECT NEW.account, NEW.name, OLD.instance, NEW.seen WHERE OLD.instance <> '';
  DELETE FROM replaced
   WHERE account = NEW.account AND machine = NEW.name AND instance IN (
     SELECT instance FROM replaced
      WHERE account = NEW.account AND machine = NEW.name
      ORDER BY since DESC LIMIT -1 OFFSET %d);
END;

CREATE TABLE tokens (
  id        TEXT PRIMARY KEY,
  hash      BLOB NOT NULL UNIQUE CHECK (length(hash) = 32),
  account   TEXT NOT NULL REFERENCES accounts ON DELETE CASCADE,
  kind      TEXT NOT NULL CHECK (kind IN ('agent', 'device')),
  name      TEXT NOT NULL,
  machine   TEXT NOT NULL,
  device    TEXT NOT NULL,
  created   INTEGER NOT NULL,
  expires   INTEGER NOT NULL,
  revoked   INTEGER NOT NULL,
  used      INTEGER NOT NULL DEFAULT 0,
  used_from TEXT NOT NULL DEFAULT ''
) STRICT;
CREATE INDEX tokens_account ON tokens (account, device);

CREATE TABLE devices (
  id      TEXT PRIMARY KEY,
  account TEXT NOT NULL REFERENCES accounts ON DELETE CASCADE,
  name    TEXT NOT NULL,
  key     TEXT NOT NULL,
  created INTEGER NOT NULL,
  revoked INTEGER NOT NULL DEFAULT 0,
  used    INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX devices_account ON devices (account);
CREATE UNIQUE INDEX devices_key ON devices (account, key) WHERE revoked = 0;

-- Keys that a machine has yet to remove.
CREATE TABLE revocations (
  account TEXT NOT NULL,
  machine TEXT NOT NULL,
  device  TEXT NOT NULL,
  key     TEXT NOT NULL,
  PRIMARY KEY (account, machine, device, key),
  FOREIGN KEY (account, machine) REFERENCES machines ON DELETE CASCADE
) STRICT, WITHOUT ROWID;

-- key and token are those of the first and of the newest redemption.
CREATE TABLE pairings (
  hash    BLOB PRIMARY KEY CHECK (length(hash) = 32),
  account TEXT NOT NULL,
  machine TEXT NOT NULL,
  expires INTEGER NOT NULL,
  key     TEXT NOT NULL DEFAULT '',
  token   TEXT NOT NULL DEFAULT '',
  FOREIGN KEY (account, machine) REFERENCES machines ON DELETE CASCADE
) STRICT, WITHOUT ROWID;
CREATE INDEX pairings_machine ON pairings (account, machine, expires);

-- AUTOINCREMENT: a number that was pruned is never given again.
CREATE TABLE changes (
  seq     INTEGER PRIMARY KEY AUTOINCREMENT,
  kind    TEXT NOT NULL,
  account TEXT NOT NULL,
  machine TEXT NOT NULL,
  token   TEXT NOT NULL,
  device  TEXT NOT NULL
) STRICT;
`, maxReplaced)

// schema2 adds notices: a row for each account that one was posted to, so that
// an account's are removed with it and read by its own people.
const schema2 = `
CREATE TABLE notices (
  account TEXT NOT NULL REFERENCES accounts ON DELETE CASCADE,
  id      TEXT NOT NULL,
  text    TEXT NOT NULL,
  posted  INTEGER NOT NULL,
  read    INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (account, id)
) STRICT, WITHOUT ROWID;
CREATE INDEX notices_posted ON notices (posted);
`
