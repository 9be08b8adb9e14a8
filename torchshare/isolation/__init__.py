"""All patches of torch, Python and numpy that isolate jobs from each other. Installed while a runtime is open."""
