"""Checkpoints of jobs: what is in them, when they are due, and how a job goes on from one."""
