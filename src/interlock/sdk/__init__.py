"""The Python SDK: the app, tasks, handles and the context of a run."""
