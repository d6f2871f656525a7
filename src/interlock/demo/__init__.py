"""The jobs that `interlock up` shows: no key, no network, and every way a job can go."""
