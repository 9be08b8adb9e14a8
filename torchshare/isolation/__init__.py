"""Every patch of torch, Python and numpy that keeps jobs apart. Installed while a runtime is open."""
