"""Configuration of the documentation: ``sphinx-build -W docs docs/_build/html``."""

from __future__ import annotations

import os
import sys

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from sphinx_gallery.scrapers import figure_rst

import daskmm

# Commands on the pages are those of the environment that builds them.
os.environ["PATH"] = f"{os.path.dirname(sys.executable)}{os.pathsep}{os.environ['PATH']}"
os.environ.setdefault("PYTHONWARNINGS", "ignore")

project = "daskmm"
author = "the daskmm developers"
project_copyright = "2026, the daskmm developers"
version = release = daskmm.__version__

extensions = [
    "myst_nb",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    # Formulas are drawn by a script that comes with the pages.
    "sphinx-mathjax-offline",
    "sphinx_gallery.gen_gallery",
]
# Pages of the reference are generated with the first one.
source_suffix = {".rst": "restructuredtext", ".md": "myst-nb"}
exclude_patterns = [
    "_build",
    "gallery/*",
    # What the gallery writes beside its pages. The page of its times loads scripts from elsewhere.
    "**sg_execution_times*",
    *(f"auto_gallery/*.{kind}" for kind in ("ipynb", "py", "json", "md5", "zip")),
]
root_doc = "index"
# The function that draws for the gallery cannot be kept from build to build.
suppress_warnings = ["config.cache"]
templates_path = ["_templates"]

# Pages are executed in each build; an error in a cell is an error of the build.
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 300
nb_execution_show_tb = True
nb_merge_streams = True
myst_enable_extensions = ["colon_fence", "dollarmath", "amsmath", "deflist"]
myst_heading_anchors = 3

autosummary_generate = True
numpydoc_show_class_members = False
numpydoc_class_members_toctree = False
autodoc_typehints = "none"


def drawn(block, block_vars, gallery_conf):
    """Save the figures of an example, those of `daskmm.plot` too, which pyplot does not know."""
    paths = []
    for figure in list(block_vars["example_globals"].values()):
        if isinstance(figure, Figure) and not hasattr(figure, "is_in_gallery"):
            paths.append(next(block_vars["image_path_iterator"]))
            figure.savefig(paths[-1], dpi=100)
            figure.is_in_gallery = True
    plt.close("all")
    return figure_rst(paths, gallery_conf["src_dir"])


sphinx_gallery_conf = {
    "examples_dirs": "gallery",
    "gallery_dirs": "auto_gallery",
    "filename_pattern": "/plot_",
    "download_all_examples": False,
    "show_signature": False,
    "abort_on_example_error": True,
    "plot_gallery": True,
    "min_reported_time": 30,
    "image_scrapers": (drawn,),
}

html_theme = "pydata_sphinx_theme"
html_title = "daskmm"
html_static_path = ["_static"]
html_css_files = ["daskmm.css"]
html_show_sourcelink = False
html_sidebars = {page: [] for page in ("get-started", "real-tables", "evidence", "changes")}
html_theme_options = {
    "header_links_before_dropdown": 6,
    # A field to search in would take a second row of the header.
    "navbar_persistent": ["search-button"],
    "navigation_with_keys": False,
    "show_toc_level": 2,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "show_prev_next": True,
}


def setup(app):
    """Say what the extension does not: its one function keeps no state between pages."""
    app.extensions["sphinx-mathjax-offline"].parallel_read_safe = True
