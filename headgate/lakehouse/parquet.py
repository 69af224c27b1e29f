"""A folder of Parquet files: ``data/000000000001.parquet`` and so on, each of which is one commit.

A file is created with put-if-absent under the next number, and has its position in its metadata. So two exports never
add the same rows, and every file of the folder counts. Readers need nothing but the files. All files but the newest may
be moved or deleted. ``_export.json`` has a random id of the folder: one that is created again has another.
"""

import asyncio
import secrets
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from headgate.errors import ConfigError, ObjectExistsError, ObjectMissingError
from headgate.lakehouse.table_rows import TableRows
from headgate.lakehouse.tables import PROPERTY, created_again, decoded, deleted, encoded, foreign_rows, table_errors
from headgate.ledger.objects import chunk_name, chunk_numbers
from headgate.reading.topic_position import TopicPosition
from headgate.storage.object_store import create_own, open_store

FOLDER: Final = "data"
ID_PATH: Final = "_export.json"


class ParquetExport:
    def __init__(self, url: str, _: TopicPosition, rows: TableRows) -> None:
        self.name = f"Parquet folder {url}"
        if rows.by_day:
            raise ConfigError("--partition-by day needs a Delta or Iceberg table: a Parquet file is one commit")
        self._store = open_store(url if "://" in url else Path(url).absolute().as_uri())
        if others := sorted({*asyncio.run(self._store.folders(""))} - {FOLDER}):
            raise ConfigError(f"{self.name} has {', '.join(others)} beside {FOLDER}: choose a folder without a table")
        self._folder_id = asyncio.run(self._claim_id())  # Before the names: another folder has another id.
        numbers = chunk_numbers(asyncio.run(self._store.names(FOLDER)))
        self._number = max(numbers, default=0)
        self.position: TopicPosition | None = None
        if self._number:
            file = pq.ParquetFile(BytesIO(asyncio.run(self._store.read(f"{FOLDER}/{chunk_name(self._number)}"))))
            rows.lacks_columns(file.schema_arrow, self.name)
            metadata = file.schema_arrow.metadata or {}
            if PROPERTY.encode() not in metadata:
                raise foreign_rows(self.name)
            self.position = decoded(metadata[PROPERTY.encode()], self.name)

    def append(self, rows: pa.Table, position: TopicPosition) -> None:
        out = BytesIO()
        pq.write_table(rows.replace_schema_metadata({PROPERTY: encoded(position)}), out, compression="zstd")
        number = self._number + 1
        with table_errors(self.name, ObjectExistsError):
            asyncio.run(self._add(f"{FOLDER}/{chunk_name(number)}", out.getvalue()))
        self._number, self.position = number, position

    async def _claim_id(self) -> bytes:
        with suppress(ObjectExistsError):
            await create_own(self._store, ID_PATH, b'{"id":"%s"}' % secrets.token_hex(16).encode())
        return await self._store.read(ID_PATH)

    async def _add(self, path: str, data: bytes) -> None:
        try:
            found = await self._store.read(ID_PATH)
        except ObjectMissingError:
            raise deleted(self.name) from None
        if found != self._folder_id:
            raise created_again(self.name)
        await create_own(self._store, path, data)
