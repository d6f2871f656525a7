"""The only place that changes state: one module per actor, over any store."""
