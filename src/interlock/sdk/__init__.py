"""What users write tasks with: the app, tasks, handles and the context of a run."""
