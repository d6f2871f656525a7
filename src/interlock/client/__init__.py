"""The client protocol used by workers and the SDK, and its implementations: in process and over HTTP."""
