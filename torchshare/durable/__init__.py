"""Files that are whole or absent, and their names."""
