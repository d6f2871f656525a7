"""The native API under /v1, one module per noun."""
