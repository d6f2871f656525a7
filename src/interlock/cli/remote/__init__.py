"""The engine operations that commands use, over HTTP."""
