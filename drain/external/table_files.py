"""List the data files of an external table, at one version of it.

A Delta or Iceberg table names its files, and a folder or bucket contains them. Rows that such a table has deleted are
listed with their file. What a library cannot read is refused by name.

A list of an Iceberg table reads its new manifests only, because none ever changes. The present snapshot says which ones
count, so the list is complete whatever has happened to the table.
"""

import re
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from glob import escape
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import obstore
import obstore.store
import pyarrow as pa
import pyarrow.parquet as pq

from drain.external.file_reader import DataFile
from drain.table_mapping import AcknowledgementsTable, EntriesTable
from headgate.errors import HeadgateError
from headgate.extras import install_extra
from headgate.lakehouse.tables import table_errors

SCHEMES: Final = ("file", "s3", "gs", "az", "abfs", "abfss")
PIECE_BYTES: Final = 8 * 1024 * 1024
_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
_WILDCARDS: Final = re.compile(r"/[^/]*[*?\[]")
_HIDDEN: Final = re.compile(r"(^|/)[._](?![^/]*=)")
"""Files that writers have not finished, and their logs, begin so. The folder of a partition may, too."""
Manifests = dict[tuple[str, str], list[tuple[str, int]]]
"""(id of the table, manifest) → path and size of each data file."""


def table_files(
    table: EntriesTable | AcknowledgementsTable, columns: Iterable[str], manifests: Manifests
) -> list[DataFile]:
    """Return the files of ``table``, sorted; ``columns``: those that are mapped. Blocks.

    A large file is listed in pieces, so that tasks share it, and a run needs not read all of it. ``manifests``: those
    that the last list has read, updated by this one. Raises HeadgateError: the table does not exist, may not be read,
    or has a feature that is not read.
    """
    found: list[DataFile] = []
    path = _url(unquote(table.path) if table.path.startswith("file:") else table.path)
    with table_errors(f"{table.format} table"):
        try:
            kinds: dict[str, Callable[[str], Iterator[DataFile]]]
            kinds = {"delta": _delta, "iceberg": partial(_iceberg, columns, manifests)}
            for file in sorted(kinds.get(table.format, _folder)(path), key=lambda each: each.path):
                count = 1 if table.format in {"csv", "json"} else max(1, -(-file.size_bytes // PIECE_BYTES))
                found += (replace(file, piece=(at, count)) for at in range(count))
        except ModuleNotFoundError as error:
            raise HeadgateError(f"it needs {error.name}: {install_extra('lakehouse')}") from error
    return found


def _url(path: str) -> str:
    """Return a path or URL as objects in buckets and local files are named."""
    return re.sub(r"^s3a:", "s3:", re.sub(r"^file:/+", "/", path))


def _folder(path: str) -> Iterator[DataFile]:
    scheme, _, _ = path.rpartition("://")
    if scheme and scheme not in SCHEMES:
        raise HeadgateError(f"URLs of {scheme} are not read; use a path, or a URL of {', '.join(SCHEMES[1:])}")
    absolute = path.rstrip("/") if scheme else str(Path(path).absolute())
    # A file, or names with wildcards, are looked for in the folder before them.
    wildcards = _WILDCARDS.search(absolute)
    root, pattern = absolute, "*"
    if not scheme and Path(path).is_file():
        root, pattern = str(Path(absolute).parent), escape(Path(absolute).name)
    elif wildcards and (scheme or not Path(path).exists()):
        root = absolute[: wildcards.start()]
        pattern = absolute[len(root) + 1 :]
    if not scheme:
        _require_folder(root)
    found = False
    for page in obstore.list(obstore.store.from_url(root if scheme else Path(root).as_uri())):
        for meta in page:
            if fnmatchcase(meta["path"], pattern) and not _HIDDEN.search(meta["path"]):
                found, version = True, meta["e_tag"] or meta["last_modified"].isoformat()
                yield DataFile(f"{root}/{meta['path']}", meta["size"], version, _partition(meta["path"]))
    if not found and (scheme or pattern != "*"):
        raise HeadgateError("there is no such object: correct the path")


def _require_folder(path: str) -> None:
    if not Path(path).is_dir():
        raise HeadgateError(f"{path} does not exist")


def _partition(relative: str) -> tuple[tuple[str, str | None], ...]:
    """Return the values in the names of folders, as in ``day=2026-11-27/part-0.parquet``."""
    folders = [name.partition("=") for name in relative.split("/")[:-1] if "=" in name]
    return tuple((column, None if value == _NULL else unquote(value)) for column, _, value in folders)


def _delta(path: str) -> Iterator[DataFile]:
    from deltalake import DeltaTable  # noqa: PLC0415 - of the extra lakehouse

    if "://" not in path:
        _require_folder(path)
    table = DeltaTable(path)
    if table.metadata().configuration.get("delta.columnMapping.mode", "none") != "none":
        raise HeadgateError("has column mapping, which is not read: write a copy without delta.columnMapping.mode")
    deleted: dict[str, bytes] = {}
    if "deletionVectors" in (table.protocol().reader_features or ()):
        for uri, kept in zip(*pa.table(table.deletion_vectors()).to_pydict().values(), strict=True):
            deleted[_url(unquote(uri))] = array("q", (row for row, keep in enumerate(kept) if not keep)).tobytes()
    root = _url(unquote(table.table_uri)).rstrip("/")
    actions = pa.table(table.get_add_actions(flatten=True))
    partitions = [name for name in actions.column_names if name.startswith("partition.")]
    for row in actions.select(["path", "size_bytes", "modification_time", *partitions]).to_pylist():
        file = unquote(row["path"])
        file = _url(file) if re.match(r"\w+:/", file) else f"{root}/{file}"
        values = ((name.partition(".")[2], row[name]) for name in partitions)
        constants = tuple((name, None if value is None else str(value)) for name, value in values)
        version, vector = f"{row['modification_time']}", deleted.pop(file, b"")
        yield DataFile(file, row["size_bytes"], version, constants, deleted=vector)
    if deleted:
        raise HeadgateError(f"has a deletion vector for {min(deleted)}, which is none of its files")


def _iceberg(columns: Iterable[str], manifests: Manifests, name: str) -> Iterator[DataFile]:
    from headgate.lakehouse.iceberg import loaded_table  # noqa: PLC0415 - of the extra lakehouse

    table = loaded_table(name)
    known = {field.name: field.field_id for field in table.schema().fields}
    ids = tuple(sorted((column, known[column]) for column in columns if column in known))
    for path, size, deleted in _live_files(table, manifests):
        yield DataFile(_url(path), size, f"{table.metadata.table_uuid}", field_ids=ids, deleted=deleted)


def _live_files(table: Any, manifests: Manifests) -> Iterator[tuple[str, int, bytes]]:
    """Yield the path, the size and the deleted rows of each data file. Reads manifests that are not known."""
    from pyiceberg.manifest import ManifestContent  # noqa: PLC0415 - of the extra lakehouse
    from pyiceberg.utils.concurrent import ExecutorFactory  # noqa: PLC0415

    snapshot = table.current_snapshot()
    present = snapshot.manifests(table.io) if snapshot else []
    if any(each.content != ManifestContent.DATA for each in present):
        for task in table.scan().plan_files():
            yield _checked(task.file).file_path, task.file.file_size_in_bytes, _deleted_rows(table, task)
        return
    names = {(f"{table.metadata.table_uuid}", each.manifest_path): each for each in present}
    new = names.keys() - manifests.keys()
    read = ExecutorFactory.get_or_create().map(lambda name: names[name].fetch_manifest_entry(table.io), new)
    for name, entries in zip(new, read, strict=True):
        files = (_checked(entry.data_file) for entry in entries if entry.data_file.record_count)
        manifests[name] = [(file.file_path, file.file_size_in_bytes) for file in files]
    for name in manifests.keys() - names.keys():
        del manifests[name]
    yield from ((*file, b"") for files in manifests.values() for file in files)


def _checked(file: Any) -> Any:
    if file.file_format != "PARQUET":
        raise HeadgateError(f"{file.file_path} is not Parquet, and other files and deletion vectors are not read")
    return file


def _deleted_rows(table: Any, task: Any) -> bytes:
    rows = array("q")
    for each in sorted(map(_checked, task.delete_files), key=lambda each: each.file_path):
        with table.io.new_input(each.file_path).open() as source:
            rows.extend(pq.read_table(source, filters=[("file_path", "=", task.file.file_path)])["pos"].to_pylist())
    return rows.tobytes()
