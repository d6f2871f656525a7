"""The SQLite engine: one file, one writer thread, readers apart."""
