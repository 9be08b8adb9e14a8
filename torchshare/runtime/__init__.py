"""Runtime and Job, which users meet."""
