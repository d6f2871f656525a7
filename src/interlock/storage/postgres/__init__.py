"""The PostgreSQL engine: verbs are functions in the database, one round trip and one commit each."""
