"""The state of jobs outside of their memory: checkpoints."""
