"""Jobs that answer requests."""
