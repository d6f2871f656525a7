"""One module per page or family of pages, each with its own part of the table."""
