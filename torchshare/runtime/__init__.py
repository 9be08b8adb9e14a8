"""The public facades Runtime and Job."""
