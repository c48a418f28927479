"""The configuration of the documentation site: `make docs` builds it, without network."""

import os
import sys
import tomllib
import warnings
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "_ext"), str(HERE.parent / "release")]  # figures use release/merge_tables.py
os.environ.setdefault("OMP_NUM_THREADS", "1")

from public_names import MOCKED  # noqa: E402 - after the path is set

from streamsvm import __version__  # noqa: E402 - after the environment of numpy is set

project = "streamsvm"
author = "the authors of streamsvm"
copyright = author  # noqa: A001 - Sphinx's name
version = release = __version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "animations",
    "docstrings",
    "numpydoc",
    "myst_parser",
    "sphinx_argparse_cli",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
    "built_links",
    "figures",
    "object_role",
    "public_names",
    "repository_links",
    "search_words",
]
root_doc = "index"
templates_path = ["_templates"]
exclude_patterns = ["_templates", "gallery/sg_execution_times.rst"]

# References. A single backtick in a docstring names a Python object (docs/_ext/object_role.py). A build must not need network,
# so no inventories of other projects are loaded, and names of their types are not checked.
default_role = "object"
nitpicky = True
nitpick_ignore_regex = [
    (r"py:.*", r"(builtins|collections|concurrent|contextlib|datetime|enum|pathlib|threading|typing)\..*"),
    (r"py:.*", r"(numpy|np|numba|pandas|polars|pyarrow|pyspark|river|scipy|sklearn)\..*"),
]

# API: a page for each class and function, written from its docstring.
autosummary_generate = True
autosummary_ignore_module_all = False
toc_object_entries_show_parents = "hide"
autodoc_default_options = {"member-order": "groupwise"}
autodoc_typehints = "none"  # docstrings describe parameters with shapes and units, so types would be redundant
autodoc_use_type_comments = False  # to look for them in each function takes a second
autodoc_mock_imports = MOCKED  # pyspark is 450 MB and needs Java
numpydoc_show_class_members = False  # the pages' template lists them

# Pages.
highlight_language = "none"  # of blocks without a language
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
sphinx_gallery_conf = {
    "examples_dirs": "../examples/gallery",
    "gallery_dirs": "gallery",
    "filename_pattern": "/",
    "download_all_examples": False,
    "show_memory": False,
    "show_signature": False,
    "min_reported_time": 1e9,  # hide running times
    "write_computation_times": False,
    "abort_on_example_error": True,
    "matplotlib_animations": (True, "jshtml"),
    "capture_repr": ("_repr_html_",),  # not the return values of matplotlib's functions
}
plot_formats = [("png", 150)]
plot_html_show_formats = False
plot_rcparams = {"font.size": 11}
warnings.filterwarnings("ignore", "(open|read)_text is deprecated", DeprecationWarning)  # kafka-python 3.0, when it is imported

urls = tomllib.loads((HERE.parent / "pyproject.toml").read_text())["project"]["urls"]
html_theme = "pydata_sphinx_theme"
html_title = "streamsvm"
html_static_path = ["_static"]
html_favicon = "_static/favicon.svg"
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "logo": {"text": f"streamsvm {version}"},
    "icon_links": [{"name": "Source", "url": urls["Source"], "icon": "fa-brands fa-github"}],
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
}
html_sidebars = {name: [] for name in ("index", "install", "tutorial", "choose")}  # they have no subpages
