"""Files: whole or absent, locked by name, and the user's cache."""
