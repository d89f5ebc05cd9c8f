"""How Sphinx builds these pages: `make docs`."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

import fedhip

project = "fedhip"
author = "The fedhip authors"
version = release = fedhip.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "myst_parser",
    "commands",
    "docstrings",
]
exclude_patterns = ["_build", "_ext"]
myst_enable_extensions = ["colon_fence", "deflist", "attrs_inline"]
myst_heading_anchors = 3

# In docstrings only backticks mean something (see docstrings.py), and they mean code.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_type_aliases = {"ArrayLike": "ArrayLike"}
autodoc_default_options = {"members": True}
autodoc_preserve_defaults = True
autosummary_generate = False
napoleon_google_docstring = False
napoleon_use_rtype = False
python_use_unqualified_type_names = True
toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_title = f"fedhip {release}"
html_static_path = ["_static"]
html_css_files = ["fedhip.css"]
html_show_sphinx = False
html_show_copyright = False

# Names that a package imports late are there for autodoc only once somebody has asked for them.
for package in ("fedhip", "fedhip.core", "fedhip.features", "fedhip.runs"):
    module = importlib.import_module(package)
    for name in module.__all__:
        getattr(module, name)
