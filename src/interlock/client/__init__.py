"""What a worker and the SDK talk to: one protocol, and its implementations in process and over HTTP."""
