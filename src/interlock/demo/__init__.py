"""Demo jobs of `interlock up`. They need no API key or network and cover the features of jobs."""
