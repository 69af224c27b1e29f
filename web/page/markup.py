"""Builds HTML from values. Pure. Text is escaped by construction: only `Html` is taken as it is."""

from collections.abc import Iterable
from html import escape

VOID = frozenset({"input", "link", "meta", "rect", "line"})


class Html(str):
    """Markup. Everything else is text."""

    __slots__ = ()


def markup(*content: object) -> Html:
    """Return ``content`` as markup: `Html` as it is, None as nothing, iterables one by one, other values as text."""
    return Html("".join(map(_one, content)))


def element(name: str, /, *content: object, **attributes: object) -> Html:
    """Return an element. ``class_`` is ``class``, other underscores are hyphens.

    An attribute that is None or False is left out, and one that is True has no value.
    """
    start = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{escape(str(value))}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if name in VOID and not content:
        return Html(f"<{name}{start}/>")
    return Html(f"<{name}{start}>{markup(*content)}</{name}>")


def _one(value: object) -> str:
    if isinstance(value, Html):
        return value
    if value is None:
        return ""
    if isinstance(value, Iterable) and not isinstance(value, str):
        return "".join(map(_one, value))
    return escape(str(value))
