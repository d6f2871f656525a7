"""One module per page or group of pages; each has its part of the route table."""
