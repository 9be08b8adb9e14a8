"""Measurements of a job, as values and files."""
