"""Changes as files: `_change` and the columns in Arrow's IPC format, named by nobody until a manifest names them.

What a reader is told (`ChangelogFile`) holds the size and checksum, so that damage is found before a change is served.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final
from uuid import uuid4

import polars as pl
import pyarrow as pa

from magnetar.base.checksum import crc32c
from magnetar.pipeline.errors import DamagedStateError
from magnetar.pipeline.operators.changelog import CHANGE
from magnetar.pipeline.state.files import StateFiles
from magnetar.pipeline.state.gc import CHANGELOGS

ROWS_PER_BATCH: Final = 65_536


@dataclass(frozen=True, slots=True)
class ChangelogFile:
    """One unit's changes of one epoch, in an order that only the rows decide. `unit` is the unit's name."""

    path: str
    unit: str
    rows: int
    size_bytes: int
    crc: int

    def describe(self) -> dict[str, Any]:
        """Plain values, for a manifest."""
        return asdict(self)

    @staticmethod
    def from_description(description: dict[str, Any]) -> ChangelogFile:
        return ChangelogFile(**description)


def change_schema(schema: pa.Schema) -> pa.Schema:
    """The columns of changes to rows of this schema."""
    return pa.schema([pa.field(CHANGE, pa.int8(), False), *schema])


def write_changes(
    files: StateFiles, epoch: int, unit: str, changes: pl.DataFrame, schema: pa.Schema, *, durable: bool
) -> ChangelogFile:
    """`durable`: a manifest will name it; else it only lives until the epoch is over. The name is unique."""
    rows = changes.select(CHANGE, *schema.names).to_arrow().cast(change_schema(schema))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, rows.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        writer.write_table(rows, max_chunksize=ROWS_PER_BATCH)
    data = sink.getvalue().to_pybytes()
    path = f"{CHANGELOGS}/{epoch:016x}-{uuid4().hex}.arrow"
    files.create(path, data, durable=durable)
    return ChangelogFile(path, unit, rows.num_rows, len(data), crc32c(data))


def read_changes(files: StateFiles, file: ChangelogFile) -> pa.Table:
    """Raises DamagedStateError, which also a missing or truncated file is."""
    try:
        data = files.read(file.path)
    except OSError as error:
        raise DamagedStateError(f"changelog {file.path} cannot be read: {error}") from error
    if len(data) != file.size_bytes or crc32c(data) != file.crc:
        raise DamagedStateError(f"changelog {file.path} does not match its checksum")
    return pa.ipc.open_file(pa.py_buffer(data)).read_all()
