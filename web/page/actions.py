"""The page of an action: its form, then what would change with a button to confirm it, then what was done. Pure."""

from collections.abc import Mapping
from typing import Any, get_args

from web.api.documents import ActionDocument
from web.page.markup import Html, element
from web.page.shell import Page
from web.page.tables import part


def action_page(
    name: str, summary: str, fields: Mapping[str, Any], given: Mapping[str, str], found: ActionDocument | str
) -> Page:
    """Return the page. ``found`` is text: why there is nothing to confirm; empty, if not all fields are given yet."""
    text, button = found or "The next page says what would change.", "Show"
    if isinstance(found, ActionDocument):
        text, button = ("This would change:", f"Confirm: {name}") if found.dry_run else ("Done. This has changed:", "")
    form = element(
        "form",
        *(
            element("label", f"{each} ", form_field(each, kind, given.get(each), is_fixed=button != "Show"))
            for each, kind in fields.items()
        ),
        element("input", type="hidden", name="of", value=found.of) if isinstance(found, ActionDocument) else None,
        element("button", button) if button else None,
        method="get" if isinstance(found, str) else "post",
        action=f"/actions/{name}",
    )
    changes = () if isinstance(found, str) else (element("li", each) for each in found.changes)
    return Page(
        title=f"Action {name}",
        as_of_ms=0,
        crumbs=((f"action {name}", ("actions", name)),),
        parts={
            "action": part(
                "action",
                element("p", summary),
                form,
                element("p", text, role="alert" if text == found else None),
                element("ul", changes),
            )
        },
        live=False,
        status=400 if text == found else 200,
    )


def form_field(name: str, kind: Any, value: object, *, is_fixed: bool = False) -> Html:
    """Return what a user fills in, or chooses from."""
    value = (value or kind[-1]) if isinstance(kind, tuple) else value
    choices = ("false", "true") if kind is bool else get_args(kind[0]) if isinstance(kind, tuple) else ()
    if not choices or is_fixed:
        return element("input", name=name, value=value, readonly=is_fixed)
    return element("select", *(element("option", each, selected=each == value) for each in choices), name=name)
