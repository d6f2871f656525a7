"""The parts of a store that are not hot: one module each, with its SQL in both dialects."""
