"""Measures jobs; plans and replays from the measurements."""
