"""How Sphinx builds this site: `scripts/docs`."""

import re
from typing import Any

import jaxllm

project = "jaxllm"
author = "the jaxllm authors"
copyright = "the jaxllm authors; Apache-2.0"  # noqa: A001  (Sphinx's name)
release = jaxllm.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx_copybutton", "sphinxcontrib.svgbob"]
exclude_patterns = ["_build"]

html_theme = "furo"
html_title = f"jaxllm {release}"
html_copy_source = False
html_static_path = ["_static"]
html_css_files = ["site.css"]
toc_object_entries_show_parents = "hide"
copybutton_exclude = ".linenos, .gp, .go"

myst_enable_extensions = ["colon_fence", "deflist"]
myst_fence_as_directive = ["svgbob"]  # a picture here, and readable text elsewhere
myst_heading_anchors = 3
# Blocks without a language are commands, trees and formulas.
highlight_language = "text"
suppress_warnings = ["misc.highlighting_failure"]  # JSON with an ellipsis

# The notebooks run the demo model: each build shows what today's code prints, and fails where it raises.
nb_execution_mode = "force"
nb_execution_timeout = 300
nb_execution_raise_on_error = True
nb_merge_streams = True
nb_output_stderr = "remove"

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autoclass_content = "both"
autodoc_default_options = {"members": True}
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 100
add_module_names = False


def _inline(line: str) -> str:
    """A line with `code` as reStructuredText has it, and nothing else that it would take for markup."""
    pieces = line.split("`")
    if len(pieces) % 2 == 0:  # a lone backtick
        return re.sub(r"([\\`*|_])", r"\\\1", line)
    return "".join(f"``{piece}``" if i % 2 else re.sub(r"([\\*|_])", r"\\\1", piece) for i, piece in enumerate(pieces))


def read_as_markdown(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Docstrings are plain text: backticks are code, and an indented block after an empty line is a program."""
    out: list[str] = []
    program = False
    for line in lines:
        indented = line.startswith("    ")
        if indented and not program and (not out or not out[-1]):
            out += [".. code-block:: python", ""]
            program = True
        elif line.strip() and not indented:
            program = False
        out.append(line if program else _inline(line))
    lines[:] = out


def setup(app: Any) -> None:
    """Sphinx calls this."""
    app.connect("autodoc-process-docstring", read_as_markdown)
