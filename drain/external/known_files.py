"""What is remembered of the files of an external table, and what follows from it. Pure, without Spark.

A file that is read is remembered for as long as its table lists it. It is known by its path, size and version
(drain.external.file_reader.DataFile), and its facts hold for any topic: they name segments and subscriptions as the
table does. So a count reads new files only, and a compacted table is read once again.

1. If no row names a segment of the topic, the mapping is wrong. Rows of other segments are ignored: the source may have
   split since the last import.
2. No offset is at or beyond the end of a sealed segment.
3. A mapped column that may be missing is in one file at least.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from drain.backlog.aggregates import grouped, slots_of
from drain.backlog.merge import MergedRow, StateRow
from drain.external.backlog import RemainingEntries
from drain.external.file_facts import FACTS
from drain.external.file_reader import GONE, DataFile
from headgate.errors import HeadgateError
from headgate.model.text import listed


class TableError(HeadgateError):
    """An external table cannot be counted; the text names the table and the error."""


class FilesGoneError(TableError):
    """A file was deleted between the listing and the count."""


class KnownFiles:
    """The facts of the files of one table that were read so far."""

    def __init__(self) -> None:
        self._numbers: dict[DataFile, int] = {}
        self._facts = FACTS.empty_table()
        self.next_number = 0

    def keep(self, files: Iterable[DataFile]) -> list[DataFile]:
        """Forget all but ``files``; return those of them that are not known."""
        listed = list(files)
        numbers = {file: self._numbers[file] for file in listed if file in self._numbers}
        if len(numbers) < len(self._numbers):
            self._facts = self._facts.filter(pc.is_in(self._facts["file"], pa.array(numbers.values(), pa.int64())))
        self._numbers = numbers
        return [file for file in listed if file not in numbers]

    def add(self, files: Sequence[DataFile], facts: pa.Table) -> None:
        """Remember ``files``, numbered from `next_number` on.

        Raises TableError: one of them is invalid, or FilesGoneError. The others are remembered.
        """
        first, self.next_number = self.next_number, self.next_number + len(files)
        faults = {row["file"]: row["fault"] for row in facts.filter(pc.is_valid(facts["fault"])).to_pylist()}
        sound = pc.invert(pc.is_in(facts["file"], pa.array(faults, pa.int64())))
        self._facts = pa.concat_tables([self._facts, facts.filter(sound)]).combine_chunks()
        self._numbers |= {file: first + at for at, file in enumerate(files) if first + at not in faults}
        for number, fault in sorted(faults.items()):
            kind = FilesGoneError if fault == GONE else TableError
            others = f" ({len(faults) - 1} more files are invalid)" if len(faults) > 1 else ""
            raise kind(f"{files[number - first].path}: {fault}{others}")

    @property
    def facts(self) -> pa.Table:
        """Those of segments."""
        return self._facts.filter(pc.is_valid(self._facts["label"]))

    def files(self) -> dict[int, DataFile]:
        return {number: file for file, number in self._numbers.items()}

    def check(self, ends: Mapping[str, int | None]) -> None:
        """Raise TableError if the table breaks a rule; ``ends``: label of each segment → its end if it is sealed."""
        facts, files = self.facts, self.files()
        labels = set(facts["label"].unique().to_pylist())
        if not labels:
            return
        if not labels & ends.keys():
            names = listed(sorted(ends))
            raise TableError(f"no row belongs to a segment of the topic: one has {min(labels)!r}, they are {names}")
        if missing := set.intersection(*map(set, self._facts["missing"].drop_null().to_pylist())):
            raise TableError(f"no file has a value in column {min(missing)!r}: correct the mapping, or remove it there")
        for row in facts.group_by(["label", "file"]).aggregate([("end", "max")]).to_pylist():
            end, found = ends.get(row["label"]), row["end_max"]
            if end is not None and found is not None and found > end:
                raise TableError(
                    f"{files[row['file']].path}: goes up to offset {found} in {row['label']!r}, beyond the end of that "
                    f"sealed segment, {end}: correct the file, or the end that was imported"
                )


def entry_rows(known: KnownFiles, segments: Mapping[str, int], topic_id: int) -> list[MergedRow]:
    """Return what the entries add to the ledger's rows of a topic; ``segments``: label → number."""
    found = known.facts.filter(pc.is_in(known.facts["label"], pa.array(segments, pa.string()))).sort_by("end")
    found = found.append_column("slot", slots_of(pc.subtract(found["end"], 1)))
    sums = grouped(found, "label", "rows=sum:rows sized=sum:sized size_bytes=sum:size_bytes").to_pylist()
    last = grouped(found, "label slot", "end=max:end at_ms=last:at_ms", ordered=True).to_pylist()
    rows: list[MergedRow] = []
    for each in sums:
        # A row without a size is as large as the others of its segment.
        size = (each["size_bytes"] or 0) * each["rows"] // max(1, each["sized"])
        row = StateRow(topic_id, None, segments[each["label"]], records=each["rows"], size_bytes=size)
        rows.append(MergedRow(row))
    for each in last:
        index = () if each["at_ms"] is None else ((each["end"] - 1, each["at_ms"]),)
        row = StateRow(topic_id, None, segments[each["label"]], end_offset=each["end"], timestamp_index=index)
        rows.append(MergedRow(row))
    return rows


def range_rows(
    known: KnownFiles, segments: Mapping[str, int], generations: Mapping[str, int], topic_id: int
) -> list[MergedRow]:
    longest = known.facts.group_by(["name", "label", "first"]).aggregate([("end", "max")])
    rows: list[MergedRow] = []
    for name, label, first, end in zip(*longest.to_pydict().values(), strict=True):
        if label in segments and name in generations and first < end:
            where: dict[str, Any] = {"above": ((first, end),)} if first else {"position": end}
            row = StateRow(topic_id, int(name), segments[label], seek_generation=generations[name], **where)
            rows.append(MergedRow(row))
    return rows


class Range(NamedTuple):
    """The entries of a segment from ``low`` to ``high`` by order, without those up to ``after``."""

    label: str
    low: str
    high: str
    after: str
    files: frozenset[DataFile]

    def paths(self) -> list[str]:
        return sorted(file.path for file in self.files)


class Span(NamedTuple):
    """Parts of files whose orders overlap, so that they may have the same rows."""

    whole: Range
    counted: RemainingEntries | None
    """None: there are several parts, and their distinct entries have to be counted."""

    def after(self, order: str) -> Range | None:
        if order >= self.whole.high:
            return None
        return self.whole if order < self.whole.low else self.whole._replace(after=order)


def spans(known: KnownFiles) -> dict[str, list[Span]]:
    found: dict[str, list[Span]] = {}
    files = known.files()
    rows_by_order = known.facts.sort_by([("label", "ascending"), ("low", "ascending")]).to_pylist()
    for label, rows in groupby(rows_by_order, key=lambda row: row["label"]):
        high, group = "", list[Any]()
        groups = [group]
        for row in rows:
            if group and row["low"] > high:
                groups.append(group := [])
            group.append(row)
            high = max(high, row["high"])
        found[label] = [_span(label, group, files) for group in groups]
    return found


def _span(label: str, rows: Sequence[Any], files: Mapping[int, DataFile]) -> Span:
    names = frozenset(files[row["file"]] for row in rows)
    whole = Range(label, rows[0]["low"], max(row["high"] for row in rows), "", names)
    return Span(whole, remaining(rows[0]) if len(rows) == 1 else None)


def remaining(row: Any) -> RemainingEntries:
    """Return distinct entries, with the size estimated from those that have one."""
    size = row["size_bytes"] * row["rows"] // row["sized"] if row["sized"] else None
    return RemainingEntries(row["rows"], size, row["at_ms"])


def total(counts: Iterable[RemainingEntries]) -> RemainingEntries:
    """Return the sum. Entries of unknown size are as large as the others."""
    found = list(counts)
    records = sum(each.records or 0 for each in found)
    sized = sum(each.records or 0 for each in found if each.size_bytes is not None)
    size = sum(each.size_bytes or 0 for each in found)
    oldest = min((each.oldest_ms for each in found if each.oldest_ms is not None), default=None)
    if records == 0:
        return RemainingEntries(0, 0, oldest)
    return RemainingEntries(records, size * records // sized if sized else None, oldest)
