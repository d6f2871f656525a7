"""The only layer that changes state: one module per actor, on top of any store."""
