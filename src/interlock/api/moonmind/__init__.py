"""The MoonMind face: its agent queue over our jobs, its words translated, and no rule of its own."""
