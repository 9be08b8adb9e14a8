"""What was measured of a job, as values and files."""
