"""Measures jobs, and plans and replays from what was measured."""
