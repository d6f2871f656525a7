"""Object stores for artifact bytes: a directory or a bucket. Keys are random and reveal nothing."""
