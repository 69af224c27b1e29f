"""The page of an action: its form, then what would change with a button to confirm it, then what was done. Pure."""

from collections.abc import Iterable, Mapping

from web.api.documents import ActionDocument
from web.page.markup import element
from web.page.shell import Page
from web.page.tables import part


def action_page(
    name: str, summary: str, fields: Iterable[str], given: Mapping[str, str], found: ActionDocument | None
) -> Page:
    """Return the page. ``found`` None: not all fields are given yet."""
    text, button = "The next page says what would change.", "Show"
    if found is not None:
        text, button = ("This would change:", f"Confirm: {name}") if found.dry_run else ("Done. This has changed:", "")
    shown = [element("input", name=each, value=given.get(each), readonly=found is not None) for each in fields]
    form = element(
        "form",
        *(element("label", f"{each} ", field) for each, field in zip(fields, shown, strict=True)),
        element("button", button) if button else None,
        method="get" if found is None else "post",
        action=f"/actions/{name}",
    )
    changes = () if found is None else (element("li", each) for each in found.changes)
    return Page(
        title=f"Action {name}",
        as_of_ms=0,
        crumbs=((f"action {name}", ("actions", name)),),
        parts={"action": part("action", element("p", summary), form, element("p", text), element("ul", changes))},
        live=False,
    )
