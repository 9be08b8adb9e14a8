"""Script mode: unmodified programs run as jobs."""
