"""Settings of the site that `make docs` builds with Sphinx, MyST and Furo.

The source folder is the repository, so that pages lie where code hosts show them, and their relative links work in
both places. Warnings are errors: a broken link or anchor, a page in no list, or a reference to nothing ends the build.
"""

import sys
from importlib import metadata
from pathlib import Path

from sitebuild.names import IGNORED_NAMES

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

project = "headgate"
copyright = "the headgate authors"  # noqa: A001 - Sphinx's name
release = version = metadata.version("headgate-client")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_click", "sphinx_design", "sitebuild.extension"]
root_doc = "docs/index"
include_patterns = [
    "docs/**.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "deploy/prometheus/RUNBOOK.md",
    "examples/**/README.md",
    "examples/README.md",
    "integrations/**/README.md",
]
exclude_patterns = [".*", "build", "**/node_modules", "tests", "**/__pycache__", "*.egg-info"]

nitpicky = True
nitpick_ignore_regex = IGNORED_NAMES
# An annotation `type[...]` might also mean one of the attributes of that name.
suppress_warnings = ["ref.python"]
# A name between single backticks in a docstring.
default_role = "code"

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4
myst_links_external_new_tab = False

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_class_signature = "separated"

html_theme = "furo"
html_title = f"headgate {release}"
html_extra_path = ["sitebuild/start"]
html_static_path = ["sitebuild/static"]
html_css_files = ["references.css"]
html_copy_source = False
html_show_sphinx = False
html_theme_options = {"navigation_with_keys": True, "top_of_page_buttons": []}
# Two hyphens stay two hyphens: they begin options.
smartquotes = False
templates_path: list[str] = []
