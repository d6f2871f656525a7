"""Where the bytes of artifacts are kept: a directory, or a bucket. Keys are random and say nothing."""
