"""The MoonMind protocol adapter: its agent queue on top of jobs."""
