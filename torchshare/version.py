"""The one place that says the version; pyproject.toml, setup.py and CMakeLists.txt read it."""

__version__ = "0.1.0"
