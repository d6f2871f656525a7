"""The codeQ protocol adapter: tasks are jobs, and no rule lives here."""
