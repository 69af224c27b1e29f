"""Types of options that name a place in a topic: a time, an offset of a segment, or where to start."""

from __future__ import annotations

import click

from headgate.cli.terminal.iso_time import iso_time_ms
from headgate.model.identifiers import Offset, SegmentId

_MAX_INT64 = 2**63 - 1


class Timestamp(click.ParamType[int]):
    """A time in ISO 8601 with a UTC offset, as milliseconds since 1970."""

    name = "time"

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the milliseconds; fail with an example for anything that is not an unambiguous time."""
        if isinstance(value, int):
            return value
        try:
            return iso_time_ms(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Position(click.ParamType[tuple[SegmentId, Offset]]):
    """``SEGMENT=OFFSET``."""

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


class StartPoint(click.ParamType["str | int"]):
    """``earliest``, ``latest`` or a time, which becomes milliseconds since 1970."""

    name = "start"

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> str | int:
        """Return the word or the milliseconds; fail with the choices for anything else."""
        if isinstance(value, int) or value in {"earliest", "latest"}:
            return value
        if not value[:1].isdigit():
            self.fail(f"{value!r} is not earliest, latest, or a time such as 2026-01-31T18:00:00Z", param, ctx)
        return _TIME.convert(value, param, ctx)


_TIME = Timestamp()
