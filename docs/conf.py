"""Configure Sphinx for the pages (`make docs`).

The source folder is the project's root, so that links between Markdown files work on the site as they do on GitHub.
Neither the build nor the pages use the network.
"""

import importlib.util
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_extensions"))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # otherwise TensorFlow prints a greeting to stderr
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import islices

project = "islices"
author = "the islices developers"
version = release = islices.__version__
root_doc = "docs/index"
language = "en"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "numpydoc",
    "docstrings",
    "command_help",
    "contents",
    "public_names",
    "spec_links",
]
include_patterns = [
    "README.md",
    "examples/README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "conformance/**.md",
    "docs/**",
]
exclude_patterns = [".*", "build", "islices", "dist", "out", "docs/_*", "**/__pycache__"]

# ---------------------------------------------------------------------- modules for frameworks that are missing
#: page -> the framework that its module needs; pages of missing frameworks are omitted
FRONTS = {"torch": "torch", "keras": "tensorflow", "optax": "optax", "gluon": "mxnet"}
MISSING = [front for front, module in FRONTS.items() if importlib.util.find_spec(module) is None]
exclude_patterns += [f"docs/api/fronts/{front}.rst" for front in MISSING]
if "gluon" not in MISSING:
    islices.get_backend("mxnet")  # with a current NumPy, only the adapter can import MXNet

# ---------------------------------------------------------------------- the side bar
page_order = {
    "Start": [f"docs/{name}" for name in ("tasks", "tutorial", "install", "gradients", "troubleshooting", "glossary")],
    "Your framework": [f"docs/{name}" for name in ("torch", "keras", "jax", "gluon", "trainers")],
    "Train": [
        f"docs/{name}" for name in ("operations", "optimizers", "formulas", "dp_sgd", "distributed", "performance")
    ],
    "Port and compare": [
        f"docs/{name}" for name in ("porting", "keras_to_torch", "diff", "parity", "files", "vocabularies", "audit")
    ],
    "Conformance": [
        *(f"docs/{name}" for name in ("suite", "protocol", "reports", "judge", "judged")),
        "conformance/SPEC",
    ],
    "Extend": [
        "docs/library_author",
        "docs/adapter_author",
        "conformance/sample_backend/README",
        "conformance/paddle_backend/README",
    ],
    "Reference": ["docs/api/index", "docs/api/command", "examples/README"],
    "Project": ["README", "docs/stability", "CHANGELOG", "CONTRIBUTING", "SECURITY"],
}

#: text in the search box -> the page that the search lists first
search_terms = {
    "clip sparse gradients": "docs/torch",
    "lazy adam": "docs/torch",
    "sparseadam": "docs/torch",
    "dp-sgd": "docs/dp_sgd",
    "flax": "docs/jax",
    "optax": "docs/jax",
    "equinox": "docs/jax",
    "haiku": "docs/jax",
    "lightning": "docs/trainers",
    "recommender": "docs/tutorial",
}

# ---------------------------------------------------------------------- running text
smartquotes = False  # much of the text is code: semantics="torch"
myst_heading_anchors = 3
myst_links_external_new_tab = False
suppress_warnings = ["toc.excluded"]  # pages of missing frameworks

# ---------------------------------------------------------------------- signatures and docstrings
autodoc_typehints = "none"  # the docstrings have shapes, dtypes and other accepted arguments
autodoc_preserve_defaults = False
autodoc_member_order = "bysource"
autodoc_inherit_docstrings = False  # the framework documents the methods that subclasses override
autodoc_class_signature = "mixed"
maximum_signature_line_length = 90
add_module_names = False
default_role = "py:obj"  # a name in backticks is code, and a link if the name has a page
numpydoc_show_class_members = False
numpydoc_xref_param_type = False

# ---------------------------------------------------------------------- pages
html_theme = "furo"
html_title = f"islices {release}"
html_static_path = ["_static"]
html_css_files = ["islices.css"]
html_js_files = ["copy.js"]
templates_path = ["_templates"]
html_additional_pages = {"index": "to_index.html"}  # build/docs/index.html opens the first page
html_show_copyright = False
html_show_sphinx = False
html_copy_source = False
html_show_sourcelink = False
pygments_style = "friendly"
pygments_dark_style = "github-dark"
