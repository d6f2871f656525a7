"""The codeQ face: its tasks are our jobs, its words are translated, and no rule lives here."""
