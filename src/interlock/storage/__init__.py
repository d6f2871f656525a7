"""Storage of jobs: one contract, two engines."""
