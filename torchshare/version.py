"""The package version, read by pyproject.toml, setup.py and CMakeLists.txt."""

__version__ = "0.1.0"
