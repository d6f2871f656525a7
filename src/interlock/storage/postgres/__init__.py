"""PostgreSQL engine. Operations are functions in the database: one round trip and one commit each."""
