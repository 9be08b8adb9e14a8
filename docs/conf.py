"""Sphinx's configuration: `make docs`."""

import subprocess
import sys
from pathlib import Path

import torchshare

HERE = Path(__file__).parent
BUILD = HERE.parent / "build"
sys.path.insert(0, str(HERE))
import job_file_keys  # noqa: E402
import repository  # noqa: E402

project = "torchshare"
author = copyright = "the torchshare authors"
release = version = torchshare.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinxarg.ext", "breathe"]
root_doc = "README"
html_theme = "furo"
pygments_dark_style = "monokai"
html_title = "torchshare"
html_show_sphinx = False
html_static_path = ["static"]
html_css_files = ["site.css"]
exclude_patterns = ["_build", "requirements.txt"]
myst_heading_anchors = 3
# Links out of this folder are to files of the repository.
myst_url_schemes = ["http", "https"]
suppress_warnings = ["myst.xref_missing", "myst.domains", "duplicate_declaration.cpp"]  # each header's namespace
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autoclass_content = "both"
smartquotes = False  # would make one dash of `--`
breathe_projects = {"torchshare": str(BUILD / "doxygen" / "xml")}
breathe_default_project = "torchshare"
breathe_default_members = ("members",)

DOXYGEN = f"""
INPUT = {HERE.parent}/csrc/include/torchshare
OUTPUT_DIRECTORY = {BUILD}/doxygen
GENERATE_HTML = NO
GENERATE_LATEX = NO
GENERATE_XML = YES
JAVADOC_AUTOBRIEF = YES
STRIP_FROM_INC_PATH = {HERE.parent}/csrc/include
QUIET = YES
EXCLUDE_SYMBOLS = *::Member
WARN_IF_UNDOCUMENTED = NO
"""


def setup(app):
    (BUILD / "doxygen").mkdir(parents=True, exist_ok=True)
    subprocess.run(["doxygen", "-"], input=DOXYGEN, text=True, check=True)
    app.connect("source-read", repository.insert)
    app.connect("source-read", job_file_keys.insert)
