"""The Model Context Protocol: the native API as tools for agents."""
