"""A job's state outside of its memory: checkpoints, and memory that is moved off the device."""
