"""Types of options that name a place in a topic: where to start or to move, or an offset of a segment."""

from typing import Any, Final

import click

from headgate.model.identifiers import Offset, SegmentId
from headgate.model.time_text import TIME_HELP, time_ms

_MAX_INT64 = 2**63 - 1

PlaceOption = str | int | tuple[SegmentId, Offset]
"""earliest or latest, milliseconds since 1970, or the first offset of one segment."""


class Position(click.ParamType[tuple[SegmentId, Offset]]):
    name = "segment=offset"

    def convert(
        self, value: str | tuple[SegmentId, Offset], param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[SegmentId, Offset]:
        """Return the pair; fail with an example for anything else."""
        if isinstance(value, tuple):
            return value
        segment, _, offset = value.partition("=")
        if not (segment.isascii() and segment.isdigit() and offset.isascii() and offset.isdigit()):
            self.fail(f"{value!r} is not a position; write for example 3=1200", param, ctx)
        if max(int(segment), int(offset)) > _MAX_INT64:
            self.fail(f"{value!r}: segment and offset must not exceed {_MAX_INT64}", param, ctx)
        return SegmentId(int(segment)), Offset(int(offset))


class Place(click.ParamType[PlaceOption]):
    """``earliest``, ``latest``, a time (`headgate.model.time_text`) or, with ``positions``, one `Position`."""

    name = "place"

    def __init__(self, *, positions: bool = False) -> None:
        self._positions = positions

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:  # noqa: ARG002
        return "earliest|latest|TIME" + ("|SEGMENT=OFFSET" if self._positions else "")

    def convert(self, value: PlaceOption, param: click.Parameter | None, ctx: click.Context | None) -> PlaceOption:
        """Return the word, the milliseconds or the pair; fail with examples for anything else."""
        if not isinstance(value, str) or value in {"earliest", "latest"}:
            return value
        if self._positions and "=" in value:
            return _POSITION.convert(value, param, ctx)
        try:
            return time_ms(value)
        except ValueError as error:
            others = "earliest, latest, or a position such as 3=1200" if self._positions else "earliest or latest"
            self.fail(f"{error}, or {others}", param, ctx)


PLACE_HELP: Final = f"earliest is the first stored record, latest the present end. {TIME_HELP}"
"""For the help of every option of type `Place`."""
_POSITION = Position()


start_option: Final = click.option(
    "--from",
    "start",
    type=Place(),
    default="latest",
    show_default=True,
    help=f"Where a new subscription starts. An existing one continues at its position. {PLACE_HELP}",
)


def place_arguments(place: PlaceOption, word: str) -> dict[str, Any]:
    """Return the argument of a method of `Admin` that means ``place``. ``word``: its name for earliest and latest."""
    return {"timestamp_ms": place} if isinstance(place, int) else {word: place}
