"""The screen of `headgate top`: one line for each subscription, current until q is pressed.

It asks for the cluster again and again, and shows the last answer with its time. A question that fails, or an answer
that is no newer, leaves the rows as they are and marks them as stale. headgate.cli.cluster.activity decides what the
rows are.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import ClassVar, Final

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import DataTable, Footer, Input, Static

from headgate.cli.cluster import activity
from headgate.cli.cluster.activity import Activity, Order
from headgate.client.cluster.values import ClusterInfo
from headgate.errors import NoLeaderError
from headgate.model.duration import duration

MAX_ROWS: Final = 500
"""More are counted, and found by a search: a table of ten thousand rows takes a second to fill."""
MAX_ANSWERS: Final = 100
"""Earlier answers that are kept for rates; with the shortest interval more than the window of 30 s."""
AGE_INTERVAL_SECONDS: Final = 1.0
_NUMBERS_WIDTH: Final = sum(width for _, width in activity.COLUMNS)
_SCROLLBAR: Final = 2

Ask = Callable[[], Awaitable[ClusterInfo]]


class TopScreen(App[None]):
    """Shows what ``ask`` returns."""

    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #totals, #age { height: 1; padding: 0; }
    #age.stale { background: $error; color: $text; text-style: bold; }
    DataTable { height: 1fr; }
    #search { display: none; height: 3; }
    #search.shown { display: block; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        *(
            Binding(key, f"order('{order}')", title)
            for key, order, title in (
                ("l", "lag", "Backlog"),
                ("i", "in", "In"),
                ("o", "out", "Out"),
                ("b", "blocked", "Blocked"),
                ("n", "name", "Name"),
            )
        ),
        Binding("slash", "search", "Search"),
        Binding("escape", "end_search", "All", show=False),
        Binding("q", "quit", "Quit"),
        Binding("ctrl+c", "quit", "Quit", show=False, priority=True),
    ]

    def __init__(self, ask: Ask, *, order: Order, interval_seconds: float) -> None:
        super().__init__()
        self.failure: Exception | None = None
        """Why it ended, unless the user ended it."""
        self._ask = ask
        self._order: Order = order
        self._reverse = False
        self._interval_seconds = interval_seconds
        self._answers: deque[tuple[float, ClusterInfo]] = deque(maxlen=MAX_ANSWERS)
        """Answers that differ in their time, each with the loop's time when it came."""
        self._problem = ""
        """Why the last question failed; empty: it did not."""
        self._shown: list[tuple[str, str]] = []
        # Kept, and not looked up: an answer may come while the screen is being taken down.
        self._totals = Static("", id="totals", markup=False)
        self._age = Static("asking the cluster …", id="age", markup=False)
        self._table: DataTable[Text] = DataTable(cursor_type="row", cell_padding=0, zebra_stripes=True)
        self._search = Input(placeholder="part of a topic or subscription; Escape: all", id="search")

    # Life

    def compose(self) -> ComposeResult:
        """Return the parts, from top to bottom."""
        yield from (self._totals, self._age, self._table, self._search, Footer())

    def on_mount(self) -> None:
        """Start to ask."""
        self._add_columns()
        self._table.focus()
        self.run_worker(self._ask_forever(), name="questions")
        self.set_interval(AGE_INTERVAL_SECONDS, self._show_age)

    def on_resize(self) -> None:
        """Give the names the new width."""
        self._add_columns()
        self._show_rows()

    async def _ask_forever(self) -> None:
        try:
            while True:
                await self._ask_once()
                await asyncio.sleep(self._interval_seconds)
        except Exception as error:  # noqa: BLE001 - ends the screen; the command reports it in one line
            self.failure = error
            self.exit()

    async def _ask_once(self) -> None:
        try:
            found = await self._ask()
        except NoLeaderError as error:
            # One may appear again. A wrong password, a missing right or a cluster that never answered are errors.
            if not self._answers:
                raise
            self._problem = str(error)
        else:
            self._problem = ""
            last = self._answers[-1][1] if self._answers else None
            if last is None or (last.daemon, last.as_of_ms) != (found.daemon, found.as_of_ms):
                self._answers.append((asyncio.get_running_loop().time(), found))
            self._show_rows()
        self._show_age()

    # Keys

    def action_order(self, order: Order) -> None:
        """Sort by ``order``; the same key again sorts the other way round."""
        self._reverse = not self._reverse if order == self._order else False
        self._order = order
        self._show_first_row()

    def action_search(self) -> None:
        """Let the user type what the rows must contain."""
        self._search.add_class("shown")
        self._search.focus()

    def action_end_search(self) -> None:
        """Show all rows again."""
        self._search.value = ""
        self._leave_search(shown=False)

    def on_input_changed(self) -> None:
        """Search while the user types."""
        self._show_first_row()

    def on_input_submitted(self) -> None:
        """Return to the table; the search stays visible while it limits the rows."""
        self._leave_search(shown=bool(self._search.value))

    def _leave_search(self, *, shown: bool) -> None:
        self._search.set_class(shown, "shown")
        self._table.focus()
        self._show_rows()

    # Showing

    def _add_columns(self) -> None:
        table = self._table
        table.clear(columns=True)
        self._shown = []
        for title, width in (*zip(("topic", "subscription"), self._name_widths(), strict=True), *activity.COLUMNS):
            is_name = title in ("topic", "subscription")
            table.add_column(Text(title, justify="left" if is_name else "right"), width=width)

    def _name_widths(self) -> tuple[int, int]:
        rest = max(20, self.size.width - _NUMBERS_WIDTH - _SCROLLBAR)
        return rest - rest // 2, rest // 2

    def _show_rows(self) -> None:
        if not self._answers:
            return
        now_seconds, now = self._answers[-1]
        earlier = activity.compared_with(self._answers, now_seconds)
        found = activity.activities(now, earlier)
        matching = activity.matching(found, self._search.value)
        rows = activity.in_order(matching, self._order, reverse=self._reverse)[:MAX_ROWS]
        self._totals.update(activity.headline(now))
        self._fill(rows)
        self._show_age()

    def _show_first_row(self) -> None:
        """Show what is first now, instead of the row that the user had selected."""
        self._shown = []
        self._table.scroll_home(animate=False)
        self._show_rows()

    def _fill(self, rows: list[Activity]) -> None:
        table = self._table
        selected = self._shown[table.cursor_row] if 0 <= table.cursor_row < len(self._shown) else None
        scrolled = table.scroll_y
        table.clear()
        widths = self._name_widths()
        for row in rows:
            names = (_cut(name, width - 1) for name, width in zip(row.names, widths, strict=True))
            table.add_row(*(Text(name) for name in names), *_number_texts(row))
        self._shown = [row.names for row in rows]
        if selected in self._shown:
            table.move_cursor(row=self._shown.index(selected), scroll=False)
        table.scroll_to(y=scrolled, animate=False)

    def _show_age(self) -> None:
        if not self._answers:
            return
        at_seconds, now = self._answers[-1]
        age_seconds = asyncio.get_running_loop().time() - at_seconds
        stale = bool(self._problem) or activity.is_stale(age_seconds, self._interval_seconds)
        age = self._age
        age.set_class(stale, "stale")
        if stale:
            reason = f": {self._problem}" if self._problem else ": the daemons show nothing newer"
            age.update(f"STALE, {duration(age_seconds)} old{reason}")
            return
        shown, total = len(self._shown), len(now.subscriptions)
        rows = f"{shown} of {total} subscriptions" if shown < total else f"{total} subscription{'s' * (total != 1)}"
        order = f"{self._order}, reversed" if self._reverse else self._order
        age.update(f"{activity.time_of_day(now.as_of_ms)} by {now.daemon}; {rows} by {order}")


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"


def _number_texts(row: Activity) -> list[Text]:
    cells = [Text(cell, justify="right") for cell in activity.number_cells(row)]
    if row.summary.blocked_segments:
        cells[-2].stylize("bold yellow")
    if row.outlook == "never":
        cells[-1].stylize("bold red")
    return cells
