"""The Sphinx extension: what is replaced in a page before it is parsed, and what must be documented.

A block ``{generated} NAME`` becomes the reference of that name. It is Markdown, so its headings have anchors and are
in the search index, and it is made when the site is built, so it cannot differ from the code.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path

import click
from docutils import nodes
from pygments.lexers.special import TextLexer
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.domains.python import PythonDomain
from sphinx.environment import BuildEnvironment
from sphinx.ext.napoleon import Config
from sphinx.ext.napoleon.docstring import GoogleDocstring
from sphinx.util import logging
from sphinx.util.nodes import make_refnode

from sitebuild.names import PUBLIC_MODULES, undocumented
from sitebuild.references import (
    UndocumentedError,
    client_settings,
    daemon_settings,
    exit_code_reference,
    log_events,
    log_meanings,
    log_reference,
    metrics_reference,
    producer_settings,
)

ROOT = Path(__file__).resolve().parents[2]
GENERATED = re.compile(r"^```\{generated\} (\S+)\n```$", re.MULTILINE)
REFERENCES: Mapping[str, Callable[[], str]] = {
    "client-settings": client_settings,
    "daemon-settings": daemon_settings,
    "exit-codes": exit_code_reference,
    "log-events": lambda: log_reference(log_events(ROOT), log_meanings()),
    "metrics": metrics_reference,
    "producer-settings": producer_settings,
}
LISTS_ITS_FOLDER = "docs/decisions/README"
PLAIN_LANGUAGES = ("hex", "regex")

DOCSTRINGS = Config(napoleon_numpy_docstring=False)

log = logging.getLogger(__name__)


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("env-get-outdated", _references)
    app.connect("source-read", _replace)
    app.connect("autodoc-process-docstring", _read_sections)
    app.connect("sphinx-click-process-epilog", _show_examples)
    app.connect("missing-reference", _exported_name)
    app.connect("env-check-consistency", _require_documented_names)
    for language in PLAIN_LANGUAGES:
        app.add_lexer(language, TextLexer)
    return {"parallel_read_safe": True}


def _references(_: Sphinx, env: BuildEnvironment, *_changes: set[str]) -> list[str]:
    """Return the pages that are made from the code: they are made again, although their own text is unchanged."""
    return [page for page in env.found_docs if page.startswith("docs/reference/")]


def _replace(_: Sphinx, page: str, source: list[str]) -> None:
    text = GENERATED.sub(lambda block: _reference(block[1], page), source[0])
    if page == LISTS_ITS_FOLDER:
        text += "\n```{toctree}\n:hidden:\n:glob:\n\n*\n```\n"
    source[0] = text


def _reference(name: str, page: str) -> str:
    """Return a reference; a warning fails the build if there is none, or if something in it has no text."""
    if name not in REFERENCES:
        log.warning("there is no reference %s; there are %s", name, ", ".join(REFERENCES), location=page)
        return ""
    try:
        return REFERENCES[name]()
    except UndocumentedError as error:
        log.warning("%s", error, location=page)
        return ""


def _read_sections(app: Sphinx, kind: str, name: str, value: object, options: object, lines: list[str]) -> None:
    """Read Google's sections (Args, Raises), but not in the text of an attribute, which has none.

    The extension napoleon itself takes the first words of such a text, up to a colon, for the attribute's type.
    """
    if kind not in ("attribute", "property", "data"):
        docstring = GoogleDocstring(list(lines), DOCSTRINGS, app, kind, name, value, options)  # type: ignore[arg-type]
        lines[:] = str(docstring).splitlines()


def _show_examples(_: Sphinx, context: click.Context, lines: list[str]) -> None:
    """Show the examples of a command as a block of code, so that they can be copied."""
    epilog = (context.command.epilog or "").replace("\b", "")
    examples = [line.strip() for line in epilog.strip().removeprefix("Examples:").strip().splitlines()]
    if examples:
        block = [".. code-block:: bash", "", *(f"   {example}" for example in examples)]
        lines[:] = [".. rubric:: Examples", "", *block, ""]


def _exported_name(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, content: nodes.TextElement
) -> nodes.Element | None:
    """Resolve a name in the module that defines it, or without a module, to the name under which it is exported."""
    if node["refdomain"] != "py":
        return None
    domain = env.domains["py"]
    assert isinstance(domain, PythonDomain)
    for module in (*PUBLIC_MODULES, "headgate.errors"):
        name = f"{module}.{node['reftarget'].rpartition('.')[2]}"
        if (found := domain.objects.get(name)) is not None:
            return make_refnode(app.builder, node["refdoc"], found.docname, found.node_id, content, name)
    return None


def _require_documented_names(_: Sphinx, env: BuildEnvironment) -> None:
    """Warn, which fails the build, for each exported name or public method without a page or a text."""
    domain = env.domains["py"]
    assert isinstance(domain, PythonDomain)
    for problem in undocumented(domain.objects):
        log.warning(problem, type="headgate", subtype="undocumented")
