"""A job's memory: copies of it, and moving it off the device."""
