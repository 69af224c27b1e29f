"""Published results: one object per run and shard, named by its watermark, beside the ledger.

If two runs reach the same watermark, put-if-absent lets one create the object, and the other reads
it: a result follows from the ledger alone. The last few are kept for runs that started from them.
Each names the ledger that it counts, and is merged with no other.
"""

from dataclasses import dataclass, replace
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from drain.backlog.merge import StateRow
from drain.protocol import CountedLedger
from headgate.errors import ForeignObjectError, LedgerError, ObjectExistsError
from headgate.ledger.checksum import seal_parquet
from headgate.ledger.ledger import Ledger, if_exists
from headgate.ledger.objects import check_sealed, chunk_name, chunk_numbers
from headgate.storage.object_store import Store, create_own

FORMAT: Final = 5
RETAINED_RESULTS: Final = 3
"""Results that are kept: the newest, one that a run may have started from, and one for a slow run."""
_METADATA_KEY: Final = b"headgate-backlog"

_PAIRS: Final = pa.list_(pa.list_(pa.int64()))
_TYPES: Final = {"subscription_type": pa.string(), "above": _PAIRS, "timestamp_index": _PAIRS}
STATE: Final = pa.schema([(name, _TYPES.get(name, pa.int64())) for name in ("shard", *StateRow.__slots__)])
"""The columns of a result: those of a row, which are whole numbers if not in _TYPES."""


class ResultError(LedgerError):
    """A published result is unusable; the text names it. A count from chunk 1 needs no result."""


class ForeignResultError(ResultError):
    """The newest published result counts another ledger."""


class _Header(msgspec.Struct, frozen=True, kw_only=True):
    format: int
    ledger_id: str
    shard: int
    watermark: int
    at_ms: int = 0
    term_id: int = 0


@dataclass(frozen=True, slots=True)
class Result:
    """The merged facts of a shard's ledger up to and including chunk ``watermark``."""

    shard: int
    watermark: int
    rows: tuple[StateRow, ...]
    at_ms: int = 0
    """The time of that chunk by its leader's clock."""
    ledger_id: str = ""
    """The id of the ledger that was counted; empty if it had none."""
    term_id: int = 0
    """The id of the term that wrote the last chunk; 0: an older version has counted."""


def result_folder(shard: int) -> str:
    """Return the folder of a shard's results, relative to the ledger's URL."""
    return f"backlog/shard={shard:04d}"


def result_path(shard: int, watermark: int) -> str:
    """Return the object name of a result. Watermarks are formatted like chunk numbers."""
    return f"{result_folder(shard)}/{chunk_name(watermark)}"


async def newest_result(store: Store, shard: int) -> Result:
    """Return the newest result of ``shard``; an empty one with watermark 0 if there is none.

    Raises ResultError (damaged, or of another format) or StoreUnavailableError.
    """
    found = await watermarks(store, shard)
    return await read_result(store, shard, found[-1]) if found else Result(shard, 0, ())


async def newest_of_ledger(store: Store, shard: int, ledger: CountedLedger) -> Result:
    """Return the newest result of ``shard`` of ``ledger``; an empty one with watermark 0 if there is none.

    Raises ForeignResultError (the newest one counts another ledger), and what `newest_result` raises.
    """
    found = await newest_result(store, shard)
    if found.watermark and found.ledger_id != ledger.ledger_id:
        raise ForeignResultError(
            f"{result_path(shard, found.watermark)} counts the ledger {found.ledger_id or 'without an id'}, and "
            f"{ledger.url} is {ledger.ledger_id or 'without an id'}: publish elsewhere (--out), or move "
            f"{result_folder(shard)} away"
        )
    return found if found.watermark else replace(found, ledger_id=ledger.ledger_id)


async def newest_of_history(store: Store, shard: int, ledger: CountedLedger) -> Result:
    """Return the newest result if the ledger in ``store`` still has the last chunk that it counts.

    That chunk is never trimmed. Raises ForeignResultError if it is not there, or another: an older ledger was put back.
    """
    found = await newest_of_ledger(store, shard, ledger)
    header = await if_exists(Ledger(store, shard).header, found.watermark) if found.watermark else None
    if found.watermark and (header is None or not header.is_of(found.at_ms, found.term_id)):
        raise ForeignResultError(
            f"{result_path(shard, found.watermark)}: its last chunk is missing, or is another one now"
        )
    return found


async def delete_results(store: Store, shard: int) -> None:
    for watermark in await watermarks(store, shard):
        await store.delete(result_path(shard, watermark))


async def watermarks(store: Store, shard: int, after: int = 0) -> list[int]:
    """Return the watermarks of the published results above ``after``, rising; raises StoreUnavailableError.

    Foreign objects are skipped.
    """
    return chunk_numbers(await store.names(result_folder(shard), after=chunk_name(after)))


async def read_result(store: Store, shard: int, watermark: int) -> Result:
    """Return one result; raises ResultError, ObjectMissingError or StoreUnavailableError."""
    try:
        data = await store.read(result_path(shard, watermark))
    except ForeignObjectError as error:
        raise ResultError(str(error)) from None
    return decode_result(data, shard=shard, watermark=watermark)


async def publish_result(store: Store, result: Result) -> Result:
    """Create ``result``, delete the oldest ones, and return the result that is stored now.

    Raises StoreError (not written; after OutcomeUnknownError the next run reads the outcome), or ResultError: another
    run was first, and its result cannot be read.
    """
    try:
        await create_own(store, result_path(result.shard, result.watermark), encode_result(result))
    except ObjectExistsError:
        stored = await read_result(store, result.shard, result.watermark)
        if stored.ledger_id != result.ledger_id:
            raise ForeignResultError(
                f"{result_path(result.shard, result.watermark)} counts another ledger, {stored.ledger_id}"
            ) from None
        return stored
    for watermark in (await watermarks(store, result.shard))[:-RETAINED_RESULTS]:
        await store.delete(result_path(result.shard, watermark))
    return result


def encode_result(result: Result) -> bytes:
    """Return ``result`` as Parquet bytes; equal results give equal bytes."""
    of_result = {name: getattr(result, name) for name in _Header.__struct_fields__ if name != "format"}
    header = _Header(format=FORMAT, **of_result)
    schema = STATE.with_metadata({_METADATA_KEY: msgspec.json.encode(header)})
    sink = pa.BufferOutputStream()
    pq.write_table(_table(result.shard, result.rows, schema), sink, compression="snappy")
    return seal_parquet(memoryview(sink.getvalue()))


def decode_result(data: bytes, *, shard: int, watermark: int) -> Result:
    """Return the result in ``data``; raises ResultError if it is not this one."""
    where = result_path(shard, watermark)
    recount = f"if the chunks are of this version, move {result_folder(shard)} away: the ledger is then counted again"
    try:
        header = msgspec.json.decode(check_sealed(data, where, _METADATA_KEY, FORMAT), type=_Header)
        table = pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False)
    except LedgerError as error:
        raise ResultError(f"{error}; {recount}") from None
    except (pa.ArrowException, OSError, msgspec.DecodeError) as error:
        raise ResultError(f"{where} cannot be read: {error}; {recount}") from error
    if not table.schema.equals(STATE):
        raise ResultError(f"{where} has other columns than a result; {recount}")
    if (header.shard, header.watermark) != (shard, watermark):
        raise ResultError(f"{where} says that it is result {header.watermark} of shard {header.shard}")
    rows = msgspec.convert(table.to_pylist(), tuple[StateRow, ...])
    return Result(shard, watermark, rows, header.at_ms, header.ledger_id, header.term_id)


def _table(shard: int, rows: tuple[StateRow, ...], schema: pa.Schema) -> pa.Table:
    columns = {name: [getattr(row, name) for row in rows] for name in STATE.names if name != "shard"}
    return pa.Table.from_pydict({"shard": [shard] * len(rows)} | columns, schema=schema)
