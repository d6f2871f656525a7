"""The HTTP service: it translates between requests and the engine, and holds no rule of its own."""
