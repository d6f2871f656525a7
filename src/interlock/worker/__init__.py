"""The worker: claims, runs and finishes jobs."""
