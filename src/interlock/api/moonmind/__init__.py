"""The MoonMind protocol adapter: its agent queue on top of jobs, and no rule of its own."""
