"""The SQLite storage engine: one file, one writer thread, separate reader threads."""
