"""The HTTP service. It translates between HTTP requests and the engine and contains no business rules."""
