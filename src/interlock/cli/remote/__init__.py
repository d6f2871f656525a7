"""What commands ask of an engine, asked of a server instead."""
