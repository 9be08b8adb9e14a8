"""Sphinx's configuration: `make docs`."""

import torchshare

project = "torchshare"
author = copyright = "the torchshare authors"
release = version = torchshare.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinxarg.ext"]
root_doc = "README"
html_theme = "furo"
html_title = "torchshare"
html_show_sphinx = False
exclude_patterns = ["_build", "requirements.txt"]
myst_heading_anchors = 3
# Links out of this folder are to files of the repository.
myst_url_schemes = ["http", "https"]
suppress_warnings = ["myst.xref_missing", "myst.domains"]
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autoclass_content = "both"
smartquotes = False  # would make one dash of `--`
